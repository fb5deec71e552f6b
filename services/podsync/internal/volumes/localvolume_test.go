package volumes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice/blocktest"
)

// disk is large enough for a file system.
const disk = 8 << 20

func block(name, device string) *v1.PersistentVolume {
	pv := persistentVolume(name, local(device))
	pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	return pv
}

// mapper is a pod that maps a claim.
func mapper(uid types.UID, readOnly bool) *v1.Pod {
	p := claimant(uid, readOnly)
	p.Spec.Containers[0].VolumeMounts = nil
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	return p
}

func TestALocalBlockDevice(t *testing.T) {
	root, device := t.TempDir(), blocktest.New(t, disk)
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": block("pv-1", device)}}
	m, events := eventfulManager(t, root, "boot", c, "u1", "u2")
	p := mapper("u1", false)
	mounted, err := m.Mount(t.Context(), p)
	link := filepath.Join(root, "pods/u1/volumeDevices/kubernetes.io~local-volume/pv-1")
	if got := mounted["data"]; err != nil || got != (Mounted{Device: link}) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, want := range []string{
		`globalMapPath "` + filepath.Join(root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-1") + `"`,
		`volumeMapPath "` + filepath.Dir(link) + `"`, "",
	} {
		if want != "" {
			want = `Normal SuccessfulMountVolume MapVolume.MapPodDevice succeeded for volume "pv-1" ` + want
		}
		if got := next(events.Events); got != want {
			t.Errorf("the pod has the Event %q, want %q", got, want)
		}
	}
	if to, err := os.Readlink(link); err != nil || to != device {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if err := os.WriteFile(link, []byte("written"), 0); err != nil {
		t.Error(err)
	}
	shared := mapper("u2", true)
	if mounted, err = m.Mount(t.Context(), shared); err != nil || !mounted["data"].ReadOnly {
		t.Fatalf("%+v, %v", mounted, err)
	}
	if got := blocktest.Over(t, root); len(got) != 2 {
		t.Errorf("loop devices %q, want one a pod", got)
	}

	// After a restart the API server is not asked. What a kubelet has mapped is mapped again, and is as it was.
	asked := c.asked
	if there, ok := claimManager(t, root, "boot", c).Existing(p); !ok || there["data"].Device != link || c.asked != asked {
		t.Errorf("after a restart %+v, %t, asked %d times more", there, ok, c.asked-asked)
	}
	if err := os.RemoveAll(filepath.Join(root, "pods/u1/plugins")); err != nil {
		t.Fatal(err)
	}
	kubelets := claimManager(t, root, "boot", c)
	if _, ok := kubelets.Existing(p); ok {
		t.Error("what was not noted exists")
	}
	if mounted, err = kubelets.Mount(t.Context(), p); err != nil || mounted["data"].Device != link {
		t.Errorf("%+v, %v", mounted, err)
	}
	if got := blocktest.Over(t, root); len(got) != 2 {
		t.Errorf("loop devices %q after the handover, want one a pod", got)
	}

	for _, uid := range []types.UID{"u1", "u2"} {
		if err := m.Unmount(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	nothingLeft(t, root)
}

// nothingLeft fails if a root folder has a mount, a loop device or a file.
func nothingLeft(t *testing.T, root string) {
	t.Helper()
	if loops := blocktest.Over(t, root); len(loops) > 0 {
		t.Errorf("loop devices %q are left", loops)
	}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (!e.IsDir() || strings.Contains(path, "pv-1")) {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	mounts, err := mount.New("").List()
	if err != nil {
		t.Fatal(err)
	}
	for i := range mounts {
		if strings.HasPrefix(mounts[i].Path, root+"/") {
			t.Errorf("%s is still mounted", mounts[i].Path)
		}
	}
}

func TestTheFileSystemOnALocalDevice(t *testing.T) {
	root, device := t.TempDir(), blocktest.New(t, disk)
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(device))}}
	m := claimManager(t, root, "boot", c, "u1", "u2", "u3")
	p, group := claimant("u1", false), int64(4242)
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	dir := func(uid string) string {
		return filepath.Join(root, "pods", uid, "volumes/kubernetes.io~local-volume/pv-1")
	}
	mounted, err := m.Mount(t.Context(), p)
	if got := mounted["data"]; err != nil || got != (Mounted{HostPath: dir("u1"), SELinuxRelabel: true}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if kind := fileSystemOf(t, dir("u1")); kind != "ext4" {
		t.Errorf("the file system is %s, want ext4", kind)
	}
	if info, err := os.Stat(dir("u1")); err != nil || !belongs(info, &group) {
		t.Errorf("the volume is not the pod's group's: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir("u1"), "kept"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SubPath(t.Context(), SubPath{
		Pod: p, Volume: "data", Container: "c", Root: dir("u1"), Path: "sub",
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Mount(t.Context(), claimant("u2", true)); err != nil {
		t.Fatal(err)
	}
	// The device stays mounted as long as a pod has it, and is not formatted a second time.
	for _, uid := range []types.UID{"u1", "u2"} {
		if _, err := os.Stat(filepath.Join(dir(string(uid)), "kept")); err != nil {
			t.Error(err)
		}
		if err := m.Unmount(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	nothingLeft(t, root)
	if _, err := m.Mount(t.Context(), claimant("u3", false)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir("u3"), "kept")); err != nil {
		t.Error(err)
	}
}

func fileSystemOf(t *testing.T, dir string) string {
	t.Helper()
	mounts, err := mount.New("").List()
	if err != nil {
		t.Fatal(err)
	}
	for i := range mounts {
		if mounts[i].Path == dir {
			return mounts[i].Type
		}
	}
	t.Fatalf("%s is not mounted", dir)
	return ""
}

// TestReleaseGoesOn after each step of a release that was killed.
func TestReleaseGoesOn(t *testing.T) {
	root, device := t.TempDir(), blocktest.New(t, disk)
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(device))}}
	m := claimManager(t, root, "boot", c, "u1")
	dir := m.local.mounted("u1") + "/pv-1"
	steps := []func() error{
		func() error { return unmount(dir, 0) },
		func() error { return unmount(m.local.global("pv-1"), 0) },
		func() error { return os.Remove(m.local.global("pv-1")) },
		func() error { return os.Remove(dir) },
	}
	for done := range len(steps) + 1 {
		if _, err := m.Mount(t.Context(), claimant("u1", false)); err != nil {
			t.Fatal(err)
		}
		for _, step := range steps[:done] {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Unmount(t.Context(), "u1"); err != nil {
			t.Fatalf("after %d steps: %v", done, err)
		}
		nothingLeft(t, root)
	}
}

func TestDevicesThatCannotBeHad(t *testing.T) {
	device := blocktest.New(t, 1<<20)
	hostPath := persistentVolume("pv-1", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: device}})
	hostPath.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	unknown := persistentVolume("pv-1", local(device))
	unknown.Spec.Local.FSType = new("none-such")
	for name, c := range map[string]struct {
		pv      *v1.PersistentVolume
		p       *v1.Pod
		want    string
		mapping bool
	}{
		"no device": {block("pv-1", "/does/not/exist"), mapper("u1", false),
			`MapVolume.EvalHostSymlinks failed for volume "pv-1" : lstat /does: no such file or directory`, true},
		"a folder": {block("pv-1", "/tmp"), mapper("u1", false),
			`MapVolume.MapBlockVolume failed for volume "pv-1" : /tmp is no block device`, true},
		"a path that climbs": {block("pv-1", "/dev/../x"), mapper("u1", false), "must not contain '..'", false},
		"a hostPath": {hostPath, mapper("u1", false), `MapVolume.FindMapperPluginBySpec failed for volume "pv-1" : a hostPath ` +
			"cannot be mapped as a device: use a local PersistentVolume", true},
		"an unknown file system": {unknown, claimant("u1", false),
			`MountVolume.MountDevice failed for volume "pv-1" : local: failed to mount device ` + device, false},
		"nothing on it, and read-only": {persistentVolume("pv-1", local(device)), claimant("u1", true),
			"cannot mount unformatted disk", false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			m := claimManager(t, root, "boot", &claimed{volumes: map[string]*v1.PersistentVolume{"data": c.pv}}, "u1")
			_, err := m.Mount(t.Context(), c.p)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			var one *Error
			if !errors.As(err, &one) || one.IsMapping() != c.mapping {
				t.Errorf("an error of mapping: %t, want %t", !c.mapping, c.mapping)
			}
			if err := m.Unmount(t.Context(), "u1"); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, root)
		})
	}
}

func TestReadWriteOncePodOfADevice(t *testing.T) {
	pv := block("pv-1", blocktest.New(t, disk))
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	m := claimManager(t, t.TempDir(), "boot", &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}, "u1", "u2")
	if _, err := m.Mount(t.Context(), mapper("u1", false)); err != nil {
		t.Fatal(err)
	}
	const want = `MapVolume.SetUpDevice failed for volume "pv-1" : volume uses the ReadWriteOncePod access mode`
	if _, err := m.Mount(t.Context(), mapper("u2", false)); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestADeviceOfTheNodeAgent is not given to a pod, whatever link leads to it.
func TestADeviceOfTheNodeAgent(t *testing.T) {
	own, dir := t.TempDir(), t.TempDir()
	if err := os.Symlink(own, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	call := mapCall{Private: own}
	call.Mapping.Device = filepath.Join(dir, "link/device")
	_, err := mapDevice.Do(t.Context(), Operations(), "/", call)
	if err == nil || !strings.HasSuffix(err.Error(), "is in the node agent's own folder") {
		t.Error(err)
	}
}

// TestReasonsOfErrors: the Event of an error has a reason by what failed.
func TestReasonsOfErrors(t *testing.T) {
	for step, want := range map[string][2]bool{
		"AttachVolume.Attach failed": {true, false}, "MapVolume.SetUpDevice failed": {false, true},
		stepSetUp: {false, false}, "MountVolume.WaitForAttach failed": {false, false},
	} {
		err := &Error{Volume: "data", PV: "pv", Step: step, Err: errors.New("no")}
		if got := [2]bool{err.IsAttaching(), err.IsMapping()}; got != want {
			t.Errorf("%v: attaching, mapping %v, want %v", err, got, want)
		}
	}
}
