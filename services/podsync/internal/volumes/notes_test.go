package volumes

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// The mounts of a node may go without its kernel: systemctl soft-reboot and the restart of a node that is a container
// keep the boot's name. What is not mounted is set up again, or its pod would write to the node's disk. The kubelet
// sets every volume up again when it starts.
func TestANoteWithoutAMountIsNoVolume(t *testing.T) {
	root, disk := t.TempDir(), t.TempDir()
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv-1", local(disk))}}
	p := claimant("u1", false)
	mounted, err := claimManager(t, root, "boot", c, "u1").Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	m := claimManager(t, root, "boot", c) // the next podsync
	if _, ok := m.Existing(p); !ok {
		t.Error("what is mounted is not found")
	}
	if err := unix.Unmount(mounted["data"].HostPath, 0); err != nil {
		t.Fatal(err)
	}
	m = claimManager(t, root, "boot", c)
	if _, ok := m.Existing(p); ok {
		t.Fatal("what is not mounted is taken for a volume")
	}
	there, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(there["data"].HostPath, "written"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(disk, "written")); err != nil {
		t.Errorf("what the pod wrote is not in its volume: %v", err)
	}
}

// publisher is a CSI that publishes to all pods but one, which ends in an unknown way.
type publisher struct {
	CSI

	unsure types.UID
}

func (c *publisher) Publish(_ context.Context, v *csivolume.Volume) (csivolume.Published, error) {
	if v.Pod.UID == c.unsure {
		return csivolume.Published{}, context.DeadlineExceeded
	}
	return csivolume.Published{Path: "/published"}, nil
}

func (c *publisher) Unpublish(_ context.Context, pod types.UID) error {
	if pod == c.unsure {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *publisher) Has(pod types.UID) bool { return pod == c.unsure }

// alone is a node whose only PersistentVolume is ReadWriteOncePod, and of a CSI driver.
func alone(root string, csi CSI) *Manager {
	pv := persistentVolume("pv", v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: "d.example", VolumeHandle: "h"},
	})
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	a := &api{}
	return NewManager(ManagerOptions{RootDir: root, Objects: a, Tokens: a, Foreign: Operations(), BootID: "boot", CSI: csi,
		Claims: &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}})
}

// publishedTo writes what a kubelet, or csivolume before it calls a driver, leaves of the volume in a pod's folder.
func publishedTo(t *testing.T, root, pod, mode string) {
	t.Helper()
	dir := filepath.Join(root, "pods", pod, "volumes/kubernetes.io~csi/pv")
	if err := os.MkdirAll(filepath.Join(dir, "mount"), 0o750); err != nil {
		t.Fatal(err)
	}
	data := `{"driverName":"d.example","volumeHandle":"h","specVolID":"pv","volumeLifecycleMode":"` + mode + `"}`
	if err := os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A kubelet has given the volume to a pod that runs, and has left no note. It refuses another pod, too, from what it
// finds on the disk.
func TestReadWriteOncePodOfAKubeletsPod(t *testing.T) {
	root := t.TempDir()
	publishedTo(t, root, "u1", "Persistent")
	m := alone(root, &publisher{})
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err == nil {
		t.Error("two pods have the volume")
	}
	if _, err := m.Mount(t.Context(), claimant("u1", false)); err != nil {
		t.Errorf("the pod that has it: %v", err)
	}
}

// A pod's own volume that a driver made may have the name of any PersistentVolume, and takes none.
func TestReadWriteOncePodBesideAnInlineVolumeOfTheName(t *testing.T) {
	root := t.TempDir()
	publishedTo(t, root, "u1", "Ephemeral")
	if _, err := alone(root, &publisher{}).Mount(t.Context(), claimant("u2", false)); err != nil {
		t.Error(err)
	}
}

// A volume that is perhaps mounted counts as mounted until it is certain that it is not.
func TestReadWriteOncePodOfAnUnsureMount(t *testing.T) {
	root := t.TempDir()
	m := alone(root, &publisher{unsure: "u1"})
	if _, err := m.Mount(t.Context(), claimant("u1", false)); err == nil {
		t.Fatal("it was mounted")
	}
	publishedTo(t, root, "u1", "Persistent")
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err == nil {
		t.Error("beside the pod: two pods have the volume")
	}
	if err := m.Unmount(t.Context(), "u1"); err == nil {
		t.Fatal("it was unmounted")
	}
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err == nil {
		t.Error("while it cannot be unmounted: two pods have the volume")
	}
	if err := os.RemoveAll(filepath.Join(root, "pods/u1")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Mount(t.Context(), claimant("u2", false)); err != nil {
		t.Errorf("once it is unmounted: %v", err)
	}
}

// A local volume of which a kubelet has left a folder in another pod is that pod's.
func TestReadWriteOncePodOfALocalVolume(t *testing.T) {
	root, disk := t.TempDir(), t.TempDir()
	pv := persistentVolume("pv", local(disk))
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	if err := os.MkdirAll(filepath.Join(root, "pods/u1/volumes", localName, "pv"), 0o750); err != nil {
		t.Fatal(err)
	}
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}
	if _, err := claimManager(t, root, "boot", c).Mount(t.Context(), claimant("u2", false)); err == nil {
		t.Error("two pods have the volume")
	}
}
