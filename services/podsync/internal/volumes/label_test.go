package volumes

import (
	"context"
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel/labeltest"
)

// labelingCSI publishes with the label that it is given, unless it has an error.
type labelingCSI struct {
	CSI
	asked    int
	wanted   []string
	mounted  *string // if it is another label
	err      error
	unlabels bool
}

func (c *labelingCSI) MountsWithLabel(context.Context, string) (bool, error) {
	c.asked++
	return !c.unlabels, nil
}

func (c *labelingCSI) Publish(_ context.Context, v *csivolume.Volume) (csivolume.Published, error) {
	c.wanted = append(c.wanted, v.Label)
	label := v.Label
	if c.mounted != nil {
		label = *c.mounted
	}
	return csivolume.Published{Path: "/published", Label: label}, c.err
}

func (c *labelingCSI) Unpublish(context.Context, types.UID) error { return nil }

const (
	labelA = "system_u:object_r:container_file_t:s0:c1,c2"
	labelB = "system_u:object_r:container_file_t:s0:c3,c4"
)

// labelManager is that of a process on a node with SELinux, whose claim "data" is a volume of a CSI driver.
func labelManager(root string, csi CSI, modes ...v1.PersistentVolumeAccessMode) *Manager {
	a, pv := &api{}, persistentVolume("pv", v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: "d.example", VolumeHandle: "h"},
	})
	pv.Spec.AccessModes = modes
	return NewManager(ManagerOptions{
		RootDir: root, Objects: a, Tokens: a, Foreign: Operations(), BootID: "boot", CSI: csi,
		Claims: &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}},
		Labels: selinuxlabel.New(selinuxlabel.Options{Host: labeltest.Host{}, AnyAccess: true}),
	})
}

// labelClaimant mounts the claim with processes of a level.
func labelClaimant(uid types.UID, level string) *v1.Pod {
	p := claimant(uid, false)
	p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	return p
}

func TestTheRuntimeLabelsWhatIsNotMountedWithALabel(t *testing.T) {
	for name, c := range map[string]struct {
		csi     labelingCSI
		read    bool
		wanted  string
		relabel bool
	}{
		"mounted with the label":          {wanted: labelA},
		"by a driver that mounts without": {csi: labelingCSI{unlabels: true}, relabel: true},
		"mounted without before":          {csi: labelingCSI{mounted: new("")}, wanted: labelA, relabel: true},
		// As with the kubelet: no container can change the files.
		"read-only": {csi: labelingCSI{unlabels: true}, read: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := labelManager(t.TempDir(), &c.csi, v1.ReadWriteMany)
			p := labelClaimant("u1", "s0:c1,c2")
			p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = c.read
			mounted, err := m.Mount(t.Context(), p)
			if err != nil || mounted["data"].SELinuxRelabel != c.relabel || c.csi.wanted[0] != c.wanted {
				t.Errorf("%+v, %v, published with %q", mounted, err, c.csi.wanted)
			}
			if again, ok := m.Existing(p); !ok || again["data"] != mounted["data"] {
				t.Errorf("later %+v", again)
			}
		})
	}
}

func TestConflictsAreReportedAsByTheKubelet(t *testing.T) {
	conflict := `Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process ` +
		`volumes=[data]: conflicting SELinux labels of volume pv: "` + labelA + `" and "` + labelB + `"`
	root := t.TempDir()
	csi := &labelingCSI{}
	m := labelManager(root, csi, v1.ReadWriteOncePod)
	refused := func(m *Manager, p *v1.Pod, want string) {
		t.Helper()
		if _, err := m.Mount(t.Context(), p); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	a, b := labelClaimant("a", "s0:c1,c2"), labelClaimant("b", "s0:c3,c4")
	if _, err := m.Mount(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	// That one pod alone may have the volume comes later.
	refused(m, b, conflict)
	// A later process knows what the pods want that run.
	later := labelManager(root, csi, v1.ReadWriteOncePod)
	if _, ok := later.Existing(a); !ok {
		t.Fatal("the volume is not there")
	}
	refused(later, b, conflict)
	if len(csi.wanted) != 1 {
		t.Errorf("published with %q", csi.wanted)
	}
	if err := later.Unmount(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	csi.err = &csivolume.OtherLabel{}
	refused(later, b, `Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to `+
		`process volumes=[]: `+csi.err.Error())
	csi.err = nil
	if _, err := later.Mount(t.Context(), b); err != nil {
		t.Error(err)
	}
}

func TestContainersOfOnePodWithSeveralLabels(t *testing.T) {
	m := labelManager(t.TempDir(), &labelingCSI{}, v1.ReadWriteOnce)
	p := labelClaimant("u1", "s0:c1,c2")
	other := p.Spec.Containers[0]
	other.SecurityContext = &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c3,c4"}}
	p.Spec.Containers = append(p.Spec.Containers, other)
	want := `Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process ` +
		`volumes=[data]: multiple SELinux labels found: ` + labelA + "," + labelB
	if _, err := m.Mount(t.Context(), p); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// On a node without SELinux, no driver is asked about labels, and none is noted.
func TestNoLabels(t *testing.T) {
	csi := &labelingCSI{}
	m := labelManager(t.TempDir(), csi, v1.ReadWriteOnce)
	m.opts.Labels = nil
	for _, plugin := range m.plugins {
		if c, ok := plugin.(*claim); ok {
			c.labels = nil
		}
	}
	p := labelClaimant("u1", "s0:c1,c2")
	p.Spec.Volumes = append(p.Spec.Volumes, volumeOf("scratch", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	mounted, err := m.Mount(t.Context(), p)
	if err != nil || csi.asked > 0 || csi.wanted[0] != "" || !mounted["data"].SELinuxRelabel {
		t.Errorf("%+v, %v, asked %d times, published with %q", mounted, err, csi.asked, csi.wanted)
	}
	if held, _ := m.claims.find(&Spec{Pod: p, Volume: &p.Spec.Volumes[0]}); held.Label != nil {
		t.Errorf("noted: %+v", held.Label)
	}
}

// An error about the driver is the volume's.
func TestADriverOfWhichNobodyKnows(t *testing.T) {
	csi := &failingCSI{labelingCSI{}, errors.New("no answer")}
	m := labelManager(t.TempDir(), csi, v1.ReadWriteOnce)
	if _, err := m.Mount(t.Context(), labelClaimant("u1", "s0:c1,c2")); !errors.Is(err, csi.err) {
		t.Errorf("%v", err)
	}
}

type failingCSI struct {
	labelingCSI
	err error
}

func (c *failingCSI) MountsWithLabel(context.Context, string) (bool, error) { return false, c.err }
