package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
)

// claimed are PersistentVolumes by the names of the volumes that claim them. It counts how often it is asked.
type claimed struct {
	volumes map[string]*v1.PersistentVolume
	asked   int
}

func (c *claimed) Find(_ context.Context, _ *v1.Pod, v *v1.Volume) (*cluster.ClaimedVolume, error) {
	c.asked++
	pv := c.volumes[v.Name]
	if pv == nil {
		return nil, errors.New("error processing PVC ns/data: PVC is not bound")
	}
	return &cluster.ClaimedVolume{PV: pv, ReadOnly: v.PersistentVolumeClaim.ReadOnly}, nil
}

func persistentVolume(name string, source v1.PersistentVolumeSource) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: source},
	}
}

func local(path string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
}

// claimManager mounts for real. Its pods' folders go with the test.
func claimManager(t *testing.T, root, boot string, c Claims, pods ...types.UID) *Manager {
	t.Helper()
	m, _ := eventfulManager(t, root, boot, c, pods...)
	return m
}

// eventfulManager is one whose Events are there to be read.
func eventfulManager(t *testing.T, root, boot string, c Claims, pods ...types.UID) (*Manager, *record.FakeRecorder) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	a, events := &api{}, record.NewFakeRecorder(10)
	m := NewManager(ManagerOptions{
		RootDir: root, Objects: a, Tokens: a, Claims: c, Mounter: mount.New(""), Foreign: Operations(), BootID: boot,
		Events: events,
	})
	t.Cleanup(func() {
		for _, uid := range pods {
			if err := m.Unmount(context.WithoutCancel(t.Context()), uid); err != nil {
				t.Error(err)
			}
		}
	})
	return m, events
}

// claimant is a pod that mounts a claim.
func claimant(uid types.UID, readOnly bool) *v1.Pod {
	p := podWith(volumeOf("data", v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: readOnly},
	}))
	p.UID = uid
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return p
}

func TestALocalVolume(t *testing.T) {
	root, disk := t.TempDir(), t.TempDir()
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(disk))}}
	m := claimManager(t, root, "boot", c, "u1", "u2")
	if err := os.WriteFile(filepath.Join(disk, "before"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p, group := claimant("u1", false), int64(4242)
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	if err := m.Check(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	mounted, err := m.Mount(t.Context(), p)
	want := filepath.Join(root, "pods/u1/volumes/kubernetes.io~local-volume/pv-1")
	if got := mounted["data"]; err != nil || got != (Mounted{HostPath: want, SELinuxRelabel: true}) {
		t.Fatalf("%+v, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(want, "before"))
	if err != nil || info.Sys().(*syscall.Stat_t).Gid != 4242 || info.Mode().Perm() != 0o660 {
		t.Errorf("a file from before is %v, %v", info.Mode(), err)
	}

	// Another pod with another group shares it as it is, and may only read.
	other, otherGroup := claimant("u2", true), int64(17)
	other.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &otherGroup}
	mounted, err = m.Mount(t.Context(), other)
	if err != nil || !mounted["data"].ReadOnly || mounted["data"].SELinuxRelabel {
		t.Fatalf("%+v, %v", mounted, err)
	}
	if err := os.WriteFile(filepath.Join(mounted["data"].HostPath, "new"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a read-only claim is written to: %v", err)
	}
	if info, err := os.Stat(filepath.Join(want, "before")); err != nil || info.Sys().(*syscall.Stat_t).Gid != 4242 {
		t.Errorf("the other pod's group took it: %v", err)
	}

	// After podsync's restart, the API server is not asked; after the machine's, what is mounted is mounted again.
	asked := c.asked
	there, ok := claimManager(t, root, "boot", c).Existing(p)
	if !ok || there["data"].HostPath != want || c.asked != asked {
		t.Errorf("after a restart %+v, %t, asked %d times more", there, ok, c.asked-asked)
	}
	if _, ok := claimManager(t, root, "another", c).Existing(p); ok {
		t.Error("a mount of another boot is taken for one of this")
	}

	if err := m.Unmount(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "pods/u1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's folder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(disk, "before")); err != nil {
		t.Errorf("what was in the volume: %v", err)
	}
}

func TestAHostPathThatIsClaimed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	kind := v1.HostPathDirectoryOrCreate
	pv := persistentVolume("pv-1", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir, Type: &kind}})
	m := claimManager(t, t.TempDir(), "boot", &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}, "u1")
	mounted, err := m.Mount(t.Context(), claimant("u1", true))
	if err != nil || mounted["data"] != (Mounted{HostPath: dir, ReadOnly: true}) {
		t.Fatalf("%+v, %v", mounted, err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestClaimsThatCannotBeMounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	options := persistentVolume("pv-1", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}})
	options.Spec.MountOptions = []string{"noexec"}
	for name, c := range map[string]struct {
		pv   *v1.PersistentVolume
		want string
	}{
		"not bound": {nil, "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to " +
			"process volumes=[data]: error processing PVC ns/data: PVC is not bound"},
		"no path": {persistentVolume("pv-1", local("/does/not/exist")),
			`MountVolume.NewMounter initialization failed for volume "pv-1" : path "/does/not/exist" does not exist`},
		"a file": {persistentVolume("pv-1", local(file)), `MountVolume.NewMounter initialization failed for volume "pv-1" : ` +
			"only directory and block device are supported"},
		"a character device": {persistentVolume("pv-1", local("/dev/null")),
			`MountVolume.NewMounter initialization failed for volume "pv-1" : only directory and block device are supported`},
		"a path that climbs": {persistentVolume("pv-1", local("/tmp/../etc")),
			`MountVolume.SetUp failed for volume "pv-1" : invalid path: /tmp/../etc must not contain '..'`},
		"a name that climbs": {persistentVolume("../pv", local("/tmp")), `"../pv" cannot be the name of a folder`},
		"another kind": {persistentVolume("pv-1", v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{}}),
			"PersistentVolume pv-1 has spec.iscsi, which is not built: use the CSI driver iscsi.csi.k8s.io"},
		"options of a hostPath": {options, `MountVolume.MountOptionSupport check failed for volume "pv-1" : mount options ` +
			"are not supported for this volume type"},
	} {
		t.Run(name, func(t *testing.T) {
			found := &claimed{volumes: map[string]*v1.PersistentVolume{}}
			if c.pv != nil {
				found.volumes["data"] = c.pv
			}
			m := claimManager(t, t.TempDir(), "boot", found, "u1")
			_, err := m.Mount(t.Context(), claimant("u1", false))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			// A claim that no container mounts keeps no pod waiting.
			idle := claimant("u1", false)
			idle.Spec.Containers[0].VolumeMounts = nil
			if _, err := m.Mount(t.Context(), idle); err != nil {
				t.Errorf("a claim that no container mounts: %v", err)
			}
		})
	}
}

func TestReadWriteOncePod(t *testing.T) {
	pv := persistentVolume("pv-1", local(t.TempDir()))
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	m := claimManager(t, t.TempDir(), "boot", &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}, "u1", "u2")
	if _, err := m.Mount(t.Context(), claimant("u1", false)); err != nil {
		t.Fatal(err)
	}
	const want = `MountVolume.SetUp failed for volume "pv-1" : volume uses the ReadWriteOncePod access mode and is already ` +
		"in use by another pod"
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := m.Unmount(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err != nil {
		t.Errorf("after the first pod: %v", err)
	}
}

// during is a Runner whose calls of one operation do something else instead, once.
type during struct {
	childpool.Runner
	operation string
	do        func() error
}

func (d *during) Run(ctx context.Context, c childpool.Call) (json.RawMessage, error) {
	if do := d.do; do != nil && c.Operation == d.operation {
		d.do = nil
		if err := do(); err != nil {
			return nil, err
		}
	}
	return d.Runner.Run(ctx, c)
}

// Of two pods one has the volume: also while it is mounted for the first one, after a restart, and until it is
// unmounted.
func TestReadWriteOncePodAtAnyTime(t *testing.T) {
	pv := persistentVolume("pv-1", local(t.TempDir()))
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	root, c := t.TempDir(), &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}
	m := claimManager(t, root, "boot", c, "u1", "u2")
	refused := func(when string, m *Manager) {
		t.Helper()
		if _, err := m.Mount(t.Context(), claimant("u2", false)); err == nil ||
			!strings.Contains(err.Error(), "is already in use by another pod") {
			t.Errorf("%s: %v", when, err)
		}
	}
	m.local.foreign = &during{Operations(), "mount local volume", func() error {
		refused("while it is mounted for the first pod", m)
		return nil
	}}
	if _, err := m.Mount(t.Context(), claimant("u1", false)); err != nil {
		t.Fatal(err)
	}
	again := claimManager(t, root, "boot", c)
	refused("after a restart", again)
	again.local.foreign = &during{Operations(), "unmount local volume", func() error { return errors.New("busy") }}
	if err := again.Unmount(t.Context(), "u1"); err == nil {
		t.Error("it was unmounted")
	}
	refused("after it was not unmounted", again)
	if err := again.Unmount(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Mount(t.Context(), claimant("u2", false)); err != nil {
		t.Errorf("after the first pod: %v", err)
	}
}

// What is measured of a volume while it is unmounted does not keep it from the next pod.
func TestReadWriteOncePodIsMeasuredToItsEnd(t *testing.T) {
	pv := persistentVolume("pv-1", local(t.TempDir()))
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	m := claimManager(t, t.TempDir(), "boot", &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}, "u2")
	if _, err := m.Mount(t.Context(), claimant("u1", false)); err != nil {
		t.Fatal(err)
	}
	m.local.foreign = &during{Operations(), "unmount local volume", func() error {
		_, err := m.Usage(t.Context(), "u1", "data")
		return err
	}}
	if err := m.Unmount(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err != nil {
		t.Error(err)
	}
}

func TestTheGroupOfALocalVolume(t *testing.T) {
	disk := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(disk, "f"), nil, 0o600), os.Chown(disk, -1, 4242),
		os.Chmod(disk, 0o770|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	policy, group := v1.FSGroupChangeOnRootMismatch, int64(4242)
	m := claimManager(t, t.TempDir(), "boot",
		&claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(disk))}}, "u1")
	p := claimant("u1", false)
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: &policy}
	if _, err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(disk, "f")); err != nil || info.Sys().(*syscall.Stat_t).Gid == 4242 {
		t.Errorf("a file below a folder that is the group's already was given to it: %v", err)
	}
}

// Of what a check has found, the set-up that follows it asks no API. Whatever comes later does, and so does a set-up
// that comes late.
func TestAClaimIsLookedAtOnceForASetUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local("/d"))}}
		c := &checkedClaims{claims: api}
		p := claimant("u1", false)
		s := &Spec{Pod: p, Volume: &p.Spec.Volumes[0]}
		asks := func(want int, what string, do func() error) {
			t.Helper()
			if err := do(); err != nil || api.asked != want {
				t.Errorf("%s: the API was asked %d times, want %d: %v", what, api.asked, want, err)
			}
		}
		check := func() error { return c.check(t.Context(), s) }
		take := func() error { _, err := c.take(t.Context(), s); return err }
		asks(1, "the check", check)
		asks(1, "the set-up", take)
		asks(2, "a second set-up", take)
		asks(3, "another check", check)
		time.Sleep(freshClaim)
		asks(4, "a late set-up", take)
		asks(5, "a third check", check)
		c.forget("u1")
		asks(6, "a set-up of a pod that was gone meanwhile", take)
		api.volumes = nil
		if err := check(); err == nil {
			t.Error("a claim that is not bound is found")
		}
		if err := take(); err == nil {
			t.Error("a claim that is not bound is set up")
		}
	})
}
