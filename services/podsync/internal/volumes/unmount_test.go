package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice/blocktest"
)

// runnerFunc is a Runner.
type runnerFunc func(ctx context.Context, c childpool.Call) (json.RawMessage, error)

func (f runnerFunc) Run(ctx context.Context, c childpool.Call) (json.RawMessage, error) {
	return f(ctx, c)
}

// TestTheWaitForARemovalIsNotCounted: a node may remove the folders of many pods with many files, a few at a time.
func TestTheWaitForARemovalIsNotCounted(t *testing.T) {
	removed := false
	m := NewManager(ManagerOptions{RootDir: t.TempDir(), Tokens: noTokens{}, Mounter: mount.New(""), Foreign: runnerFunc(
		func(ctx context.Context, c childpool.Call) (json.RawMessage, error) {
			removed = true
			if _, ends := ctx.Deadline(); ends || c.Operation != "remove" || !c.Long || c.Deadline != defaultDeadline {
				t.Errorf("%+v, and the wait ends: %t", c, ends)
			}
			return nil, nil
		})})
	if err := m.Unmount(t.Context(), "u1"); err != nil || !removed {
		t.Errorf("removed %t, %v", removed, err)
	}
}

// refusing refuses the calls on a path, as those of a file system that hangs end.
type refusing struct {
	childpool.Runner
	path string
}

func (r *refusing) Run(ctx context.Context, c childpool.Call) (json.RawMessage, error) {
	if c.Path == r.path {
		return nil, errors.New("has not answered for 30s: the file system may hang")
	}
	return r.Runner.Run(ctx, c)
}

// disks are PersistentVolumes by the names of the volumes that claim them.
type disks map[string]*v1.PersistentVolume

func (d disks) Find(_ context.Context, _ *v1.Pod, v *v1.Volume) (*cluster.ClaimedVolume, error) {
	return &cluster.ClaimedVolume{PV: d[v.Name]}, nil
}

// twoDisks are local volumes "a" and "b" of pod u1, with a subPath each.
func twoDisks(t *testing.T) (m *Manager, root string) {
	t.Helper()
	root = t.TempDir()
	found := disks{}
	p := claimant("u1", false)
	p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts = nil, nil
	for _, name := range []string{"a", "b"} {
		found[name] = persistentVolume("pv-"+name, local(blocktest.New(t, disk)))
		p.Spec.Volumes = append(p.Spec.Volumes, volumeOf(name, v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}))
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	m = claimManager(t, root, "boot", found, "u1")
	first := p.DeepCopy()
	first.Spec.Volumes = first.Spec.Volumes[:1]
	if _, err := m.Mount(t.Context(), first); err != nil { // one by one: package mount is not for use at once
		t.Fatal(err)
	}
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b"} {
		s := SubPath{Pod: p, Volume: name, Container: "c", Index: i, Root: mounted[name].HostPath, Path: "sub"}
		if _, err := m.SubPath(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	return m, root
}

// TestALocalVolumeThatHangsKeepsNoOther: neither if its own unmount hangs nor if that of its subPath does.
func TestALocalVolumeThatHangsKeepsNoOther(t *testing.T) {
	for name, path := range map[string]string{
		"the volume": "plugins/kubernetes.io/local-volume/mounts/pv-a", "its subPath": "pods/u1/volume-subpaths/a",
	} {
		t.Run(name, func(t *testing.T) {
			m, root := twoDisks(t)
			foreign := &refusing{Operations(), filepath.Join(root, path)}
			m.local.foreign, m.local.subPaths.Foreign = foreign, foreign
			err := m.Unmount(t.Context(), "u1")
			if err == nil || !strings.Contains(err.Error(),
				`UnmountVolume.TearDown failed for volume "pv-a" : has not answered`) || strings.Contains(err.Error(), "pv-b") {
				t.Errorf("unmounted with %v", err)
			}
			for pv, want := range map[string]bool{"pv-a": true, "pv-b": false} {
				if got := isMountPoint(mount.New(""), m.local.global(pv)); got != want {
					t.Errorf("%s is mounted on the node: %t, want %t", pv, got, want)
				}
			}
			if _, err := os.Stat(m.podDir("u1")); err != nil {
				t.Errorf("the folder of a pod with a volume: %v", err)
			}
			foreign.path = ""
			if err := m.Unmount(t.Context(), "u1"); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, root)
		})
	}
}

// TestADeviceThatHangsKeepsNoOther: of a pod with a mapped device and a mounted one.
func TestADeviceThatHangsKeepsNoOther(t *testing.T) {
	root := t.TempDir()
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": block("pv-1", blocktest.New(t, disk))}}
	m := claimManager(t, root, "boot", c, "u1")
	if _, err := m.Mount(t.Context(), mapper("u1", false)); err != nil {
		t.Fatal(err)
	}
	c.volumes["data"] = persistentVolume("pv-2", local(t.TempDir()))
	if _, err := claimManager(t, root, "another boot", c).Mount(t.Context(), claimant("u1", false)); err != nil {
		t.Fatal(err)
	}
	m.local.foreign = &refusing{Operations(), m.local.mapping("u1", "pv-1").Volume}
	err := m.Unmount(t.Context(), "u1")
	if err == nil || !strings.Contains(err.Error(), `UnmapVolume.UnmapBlockVolume failed for volume "pv-1" : has not`) {
		t.Errorf("unmapped with %v", err)
	}
	if isMountPoint(mount.New(""), filepath.Join(m.local.mounted("u1"), "pv-2")) {
		t.Error("the other volume is mounted")
	}
	m.local.foreign = Operations()
}

// endingCSI counts how often a pod's volumes are taken from it.
type endingCSI struct {
	CSI
	unpublished int
	err         error
}

func (c *endingCSI) Unpublish(context.Context, types.UID) error {
	c.unpublished++
	return c.err
}

// TestAVolumeThatHangsKeepsNoOtherKind: another node may wait for the pod's volume of a CSI driver.
func TestAVolumeThatHangsKeepsNoOtherKind(t *testing.T) {
	root, csi, a := t.TempDir(), &endingCSI{err: errors.New("the driver is away")}, &api{}
	m := NewManager(ManagerOptions{RootDir: root, Objects: a, Tokens: a, Foreign: Operations(), CSI: csi})
	if err := os.MkdirAll(filepath.Join(m.local.mounted("u1"), "pv-dead"), 0o750); err != nil {
		t.Fatal(err)
	}
	m.local.foreign = &refusing{Operations(), m.local.global("pv-dead")}
	err := m.Unmount(t.Context(), "u1")
	if csi.unpublished != 1 {
		t.Error("the pod's CSI volumes were not taken from it")
	}
	for _, want := range []string{"the driver is away", `volume "pv-dead" : has not answered`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	csi.err = nil
	if err := m.Unmount(t.Context(), "u1"); err == nil {
		t.Error("unmounted without its local volume")
	}
	m.local.foreign = Operations()
	if err := m.Unmount(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(m.podDir("u1")); !os.IsNotExist(err) {
		t.Errorf("the pod's folder: %v", err)
	}
}

func TestWhatAMountShows(t *testing.T) {
	for _, c := range []struct {
		root, whole string
		want        bool
	}{
		{"/sub", "/", true},
		{"/", "/", true},
		{"/vol/1/sub", "/vol/1", true},
		{"/vol/10/sub", "/vol/1", false},
		{"/vol", "/vol/1", false},
		{"/vol/1/sub//deleted", "/vol/1//deleted", true},
	} {
		m, of := mount.MountInfo{Major: 8, Minor: 1, Root: c.root}, mount.MountInfo{Major: 8, Minor: 1, Root: c.whole}
		if got := shows(&m, &of); got != c.want {
			t.Errorf("%s of %s: %t", c.root, c.whole, got)
		}
		if of.Minor++; shows(&m, &of) {
			t.Errorf("%s shows what is on another device", c.root)
		}
	}
}
