package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// expand has both sides make the volume larger.
func (m *mounts) expand(t *testing.T, size int64) {
	t.Helper()
	r := &csi.CapacityRange{RequiredBytes: size}
	grown, err := controller{driver: m.driver}.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: m.id, CapacityRange: r,
	})
	if err != nil || !grown.GetNodeExpansionRequired() || grown.GetCapacityBytes() != size {
		t.Fatalf("the controller says %v, %v", grown, err)
	}
	_, err = m.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: m.id, VolumePath: m.target, StagingTargetPath: m.staging, CapacityRange: r,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// isMountedOnce judges that what is staged is mounted nowhere else: a node agent would not unstage it.
func (m *mounts) isMountedOnce(t *testing.T) {
	t.Helper()
	all, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	staged := slices.IndexFunc(all, func(i mount.MountInfo) bool { return i.MountPoint == m.staging })
	if staged < 0 {
		t.Fatal("nothing is staged")
	}
	for _, i := range all {
		is := all[staged]
		if i.MountPoint != is.MountPoint && i.Major == is.Major && i.Minor == is.Minor && i.Root == is.Root {
			t.Errorf("what is staged is at %s too", i.MountPoint)
		}
	}
}

// A pod's device keeps what is written, and grows under it.
func TestABlockVolume(t *testing.T) {
	m := newMountsOf(t, device)
	if err := m.publish(t, false); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a publish before the stage gives %v", err)
	}
	for _, want := range []string{"\x00\x00\x00\x00", "data"} {
		m.stage(t)
		m.stage(t)
		if err := m.publish(t, false); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(m.target, os.O_RDWR|syscall.O_SYNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		found := make([]byte, 4)
		if _, err := io.ReadFull(f, found); err != nil || string(found) != want {
			t.Errorf("the device begins with %q, want %q: %v", found, want, err)
		}
		if _, err := f.WriteAt([]byte("data"), 0); err != nil {
			t.Error(err)
		}
		if want != "data" {
			m.expand(t, 2*leastSize)
		}
		if size, err := f.Seek(0, io.SeekEnd); err != nil || size != 2*leastSize {
			t.Errorf("the device has %d bytes, want %d: %v", size, 2*leastSize, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		m.release(t)
		if name, err := m.store.disk(m.id).attached(); err == nil {
			t.Errorf("%s is still attached", name)
		}
	}
}

// A file system grows while it is mounted, and is there until the volume is deleted.
func TestAFileSystemOfASize(t *testing.T) {
	m := newMountsOf(t, memory)
	size := func() int64 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(m.target, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Blocks) * st.Bsize
	}
	m.stage(t)
	m.isMountedOnce(t)
	if err := m.publish(t, false); err != nil {
		t.Fatal(err)
	}
	if is := size(); is != leastSize {
		t.Errorf("the file system has %d bytes", is)
	}
	if err := os.WriteFile(filepath.Join(m.target, "file"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.expand(t, 4*leastSize)
	if is := size(); is != 4*leastSize {
		t.Errorf("the file system has %d bytes", is)
	}
	m.release(t)
	m.stage(t)
	if err := m.publish(t, true); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(m.target, "file")); err != nil || string(text) != "data" {
		t.Errorf("the file has %q: %v", text, err)
	}
	m.release(t)
	if err := m.store.remove(m.id); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(m.store.folder(m.id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}
