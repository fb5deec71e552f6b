package blockdevice

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice/blocktest"
)

func loopOf(t *testing.T, file string) string {
	t.Helper()
	loop, err := loopOver(file)
	if err != nil {
		t.Fatal(err)
	}
	return loop
}

// mapping is one in a folder. The folder's own path has a link, as a root folder may have.
func mapping(t *testing.T) *Mapping {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "link")
	if err := os.MkdirAll(filepath.Join(dir, "root"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("root", root); err != nil {
		t.Fatal(err)
	}
	m := &Mapping{
		Device: blocktest.New(t, 1<<20), Volume: filepath.Join(root, "volumeDevices/pv/dev"), Pod: "u1",
		Link: filepath.Join(root, "pods/u1/volumeDevices/p/pv"),
	}
	t.Cleanup(func() {
		if err := m.Unmap(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// isMapped fails unless the three parts of a mapping are there and lead to the device, each once.
func isMapped(t *testing.T, m *Mapping) {
	t.Helper()
	var wanted, bound unix.Stat_t
	if err := errors.Join(unix.Stat(m.Device, &wanted), unix.Lstat(m.file(), &bound)); err != nil {
		t.Fatal(err)
	}
	if bound.Mode&unix.S_IFMT != unix.S_IFBLK || bound.Rdev != wanted.Rdev {
		t.Errorf("bound is mode %o, device %x, want device %x", bound.Mode, bound.Rdev, wanted.Rdev)
	}
	if to, err := os.Readlink(m.Link); err != nil || to != m.Device {
		t.Errorf("the link leads to %q, %v; want %s", to, err, m.Device)
	}
	if got := blocktest.Over(t, m.Volume); len(got) != 1 {
		t.Errorf("loop devices: %q, want one", got)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(m.Volume)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(mounts), " "+filepath.Join(real, string(m.Pod))+" "); got != 1 {
		t.Errorf("%d mounts, want one", got)
	}
}

// isUnmapped fails unless nothing of the mapping but the link is left.
func isUnmapped(t *testing.T, m *Mapping) {
	t.Helper()
	if loop := loopOf(t, m.file()); loop != "" {
		t.Errorf("loop device %s is left", loop)
	}
	if _, err := os.Lstat(m.Volume); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

// TestWhateverWasKilled maps and unmaps a device after each step that something that was killed may have done.
func TestWhateverWasKilled(t *testing.T) {
	m := mapping(t)
	steps := m.steps(m.Device)
	for done := range len(steps) + 1 {
		begin := func() {
			for _, step := range steps[:done] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
		}
		begin()
		if err := m.Unmap(); err != nil {
			t.Fatalf("undone after %d steps: %v", done, err)
		}
		isUnmapped(t, m)
		begin()
		if _, err := m.Map(); err != nil {
			t.Fatalf("mapped after %d steps: %v", done, err)
		}
		isMapped(t, m)
		back := m.backSteps()
		for undone := range len(back) + 1 {
			for _, step := range back[:undone] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := m.Map(); err != nil {
				t.Fatalf("mapped again after %d steps back: %v", undone, err)
			}
			isMapped(t, m)
			for _, step := range back[:undone] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.Unmap(); err != nil {
				t.Fatalf("undone after %d steps back: %v", undone, err)
			}
			isUnmapped(t, m)
		}
	}
}

func TestPodsShareADevice(t *testing.T) {
	m := mapping(t)
	other := *m
	other.Pod, other.Link = "u2", filepath.Join(filepath.Dir(m.Link), "other")
	for _, one := range []*Mapping{m, &other} {
		if _, err := one.Map(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Unmap(); err != nil {
		t.Fatal(err)
	}
	isMapped(t, &other)
	if err := other.Unmap(); err != nil {
		t.Fatal(err)
	}
	isUnmapped(t, m)
}

// TestTheVolumeIsAnotherDevice, as after a restart of the node, when devices get other names.
func TestTheVolumeIsAnotherDevice(t *testing.T) {
	m := mapping(t)
	if _, err := m.Map(); err != nil {
		t.Fatal(err)
	}
	m.Device = blocktest.New(t, 1<<20)
	if _, err := m.Map(); err != nil {
		t.Fatal(err)
	}
	isMapped(t, m)
	if err := m.Unmap(); err != nil { // before the device goes with its folder
		t.Fatal(err)
	}
}

// TestTheDeviceIsHeld: what has the device open keeps the kernel from giving its number to another.
func TestTheDeviceIsHeld(t *testing.T) {
	m := mapping(t)
	if _, err := m.Map(); err != nil {
		t.Fatal(err)
	}
	lock := loopOf(t, m.file())
	err := onLoop(lock, func(fd int) error {
		number, err := unix.IoctlLoopGetStatus64(fd)
		if err != nil {
			return err
		}
		var wanted unix.Stat_t
		if err := unix.Stat(m.Device, &wanted); err != nil {
			return err
		}
		if number.Rdevice != wanted.Rdev {
			return fmt.Errorf("the loop device is over device %x, want %x", number.Rdevice, wanted.Rdev)
		}
		// Another process has it open.
		if err := m.Unmap(); !errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("unmapped while the loop device is in use: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Unmap(); err != nil {
		t.Fatal(err)
	}
	isUnmapped(t, m)
}

func TestNoDevice(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for device, want := range map[string]struct {
		step, err string
	}{
		"/dev/microlet-none": {"MapVolume.EvalHostSymlinks failed", "lstat /dev/microlet-none: no such file or directory"},
		dir:                  {"MapVolume.MapBlockVolume failed", dir + " is no block device"},
		file:                 {"MapVolume.MapBlockVolume failed", file + " is no block device"},
		"/dev/null":          {"MapVolume.MapBlockVolume failed", "/dev/null is no block device"},
	} {
		m := Mapping{
			Device: device, Volume: filepath.Join(dir, "volume"), Pod: "u", Link: filepath.Join(dir, "pod/link"),
		}
		got, err := m.Map()
		if got.Step() != want.step || err == nil || err.Error() != want.err {
			t.Errorf("%s: %s, %v; want %v", device, got.Step(), err, want)
		}
		if _, err := os.Lstat(m.Volume); err == nil {
			t.Errorf("%s: a folder was made", device)
		}
	}
}

func FuzzBackingFile(f *testing.F) {
	f.Add("/var/lib/kubelet/plugins/p/u\n")
	f.Add("/a (deleted)\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		got := backingFile(text)
		if !strings.HasPrefix(text, got) {
			t.Errorf("%q is not at the beginning of %q", got, text)
		}
		if file, ok := strings.CutSuffix(text, "\n"); ok && !strings.HasSuffix(file, " (deleted)") && got != file {
			t.Errorf("%q of %q", got, text)
		}
	})
}
