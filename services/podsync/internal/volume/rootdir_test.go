package volume

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/podsync/internal/mounter/mountlist"
)

// ownMounts names the variable that tells a test that it has a mount namespace of its own.
const ownMounts = "MICROLET_TEST_MOUNTS"

// withOwnMounts runs the test once more where what it mounts is nobody else's, with no shared mount.
func withOwnMounts(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	if os.Getenv(ownMounts) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		test(t)
		return
	}
	again := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), ownMounts+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a mount namespace of its own: %v\n%s", err, out)
	}
}

// mountsAt are the mounts at a path, each with what it says of its propagation.
func mountsAt(t *testing.T, path string) (propagation []string) {
	t.Helper()
	all, err := mount.ParseMountInfo(mountlist.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.MountPoint == path {
			kind, _, _ := strings.Cut(strings.Join(m.OptionalFields, ","), ":")
			propagation = append(propagation, kind)
		}
	}
	return propagation
}

func resolvedTempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func mountTmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func TestMakeRShared(t *testing.T) {
	withOwnMounts(t, func(t *testing.T) {
		dir := resolvedTempDir(t)
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		for _, given := range []string{dir, dir, link} { // a restart finds it shared
			if err := MakeRShared(given); err != nil {
				t.Fatal(err)
			}
			if got := mountsAt(t, dir); !slices.Equal(got, []string{"shared"}) {
				t.Fatalf("%s: mounts %v, want one that is shared", given, got)
			}
		}
		mountTmpfs(t, filepath.Join(dir, "volume"))
		if got := mountsAt(t, filepath.Join(dir, "volume")); !slices.Equal(got, []string{"shared"}) {
			t.Errorf("a volume's mounts %v, want one that is shared", got)
		}
		// A folder on the shared mount needs none of its own.
		if err := os.Mkdir(filepath.Join(dir, "below"), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := MakeRShared(filepath.Join(dir, "below")); err != nil {
			t.Fatal(err)
		}
		if got := mountsAt(t, filepath.Join(dir, "below")); len(got) != 0 {
			t.Errorf("mounts %v, want none", got)
		}
	})
}

func TestMakeRSharedOfAMountPoint(t *testing.T) {
	withOwnMounts(t, func(t *testing.T) {
		dir := resolvedTempDir(t)
		mountTmpfs(t, dir)
		mountTmpfs(t, filepath.Join(dir, "volume"))
		if err := MakeRShared(dir); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, filepath.Join(dir, "volume")} {
			if got := mountsAt(t, path); !slices.Equal(got, []string{"shared"}) {
				t.Errorf("%s: mounts %v, want one that is shared", path, got)
			}
		}
	})
}

// TestMakeRSharedKeepsVolumes: pods run with volumes that were mounted before the folder was shared.
func TestMakeRSharedKeepsVolumes(t *testing.T) {
	withOwnMounts(t, func(t *testing.T) {
		dir := resolvedTempDir(t)
		m := New(Options{RootDir: dir, Tokens: noTokens{}, Mounter: mount.New(""), Foreign: Operations()})
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		pod := m.podDir("uid")
		outer := filepath.Join(pod, "volumes", "a b")
		inner := filepath.Join(outer, "inner")
		mountTmpfs(t, outer)
		mountTmpfs(t, inner)
		mountTmpfs(t, outer+"-2")
		file := filepath.Join(inner, "file")
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := MakeRShared(dir); err != nil {
			t.Fatal(err)
		}
		if got := read(t, file); got != "x" {
			t.Errorf("a volume that was mounted before has %q", got)
		}
		all, err := mountsBelow(dir)
		if err != nil || len(all) != 3 {
			t.Errorf("mounts below: %v, %v", all, err)
		}
		if err := m.Unmount(t.Context(), "uid"); err != nil {
			t.Errorf("the pod's volumes cannot be taken away: %v", err)
		}
		if _, err := os.Stat(pod); !os.IsNotExist(err) {
			t.Errorf("the pod's folder is still there: %v", err)
		}
	})
}

// mountsBelow lists what is mounted there.
func mountsBelow(dir string) ([]string, error) {
	found, err := (&kernel{mounter: func() mount.Interface { return mount.New("") }}).mountsBelow(dir)
	var paths []string
	for _, m := range found {
		paths = append(paths, m.Path)
	}
	return paths, err
}
