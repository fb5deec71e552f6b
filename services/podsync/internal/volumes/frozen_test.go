package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

var children = childpool.Program("microlet-mounter", Operations)

func TestMain(m *testing.M) {
	if children.Run() || hanging.Run() {
		return
	}
	os.Exit(m.Run())
}

// frozen is an ext4 on a loop device to which nothing can be written until thaw is called.
func frozen(t *testing.T) (dir string, thaw func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts and freezes a file system")
	}
	parent := t.TempDir()
	image, dir := filepath.Join(parent, "image"), filepath.Join(parent, "mnt")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s (this test needs util-linux, e2fsprogs and loop devices)", strings.Join(args, " "),
				err, out)
		}
	}
	run("truncate", "-s", "16M", image)
	run("mkfs.ext4", "-q", image)
	run("mkdir", dir)
	run("mount", "-o", "loop", image, dir)
	is := false
	thaw = func() {
		if is {
			is = false
			run("fsfreeze", "--unfreeze", dir)
		}
	}
	t.Cleanup(func() {
		thaw()
		proctest.Await(t, time.Minute, "the unmount of "+dir, func() bool { return unix.Unmount(dir, 0) == nil })
	})
	run("fsfreeze", "--freeze", dir)
	is = true
	return dir, thaw
}

// waiting are the threads of this process that wait in the kernel where nothing ends them.
func waiting(t *testing.T) []string {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/stat")
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	var found []string
	for _, thread := range threads {
		if text, err := os.ReadFile(thread); err == nil && strings.Contains(string(text), ") D ") {
			found = append(found, string(text))
		}
	}
	return found
}

// TestAFrozenFileSystemHoldsNoThread: pods have a frozen file system as a hostPath and as the volume of a subPath.
func TestAFrozenFileSystemHoldsNoThread(t *testing.T) {
	dir, thaw := frozen(t)
	pool := childpool.New(childpool.Options{Program: children})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		if err := pool.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	m := NewManager(ManagerOptions{RootDir: t.TempDir(), Tokens: noTokens{}, Mounter: mount.New(""), Foreign: pool})
	path, kind := filepath.Join(dir, "made"), v1.HostPathDirectoryOrCreate
	p := podWith(volumeOf("v", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}))
	hangs := func(what string, try func(context.Context) error) {
		t.Helper()
		short, done := context.WithTimeout(ctx, 5*time.Second) // in which a child is started, and hangs
		defer done()
		if err := try(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want one that names the path and the deadline", what, err)
		}
		if err := try(ctx); err == nil || !strings.Contains(err.Error(), "still hangs there") {
			t.Errorf("%s again: %v", what, err)
		}
		if held := waiting(t); len(held) > 0 {
			t.Errorf("%s: threads of this process wait in the kernel: %s", what, held)
		}
	}
	mountIt := func(ctx context.Context) error {
		_, err := m.Mount(ctx, p)
		return err
	}
	bind := func(ctx context.Context) error {
		_, err := m.SubPath(ctx, SubPath{Pod: p, Volume: "v", Container: "c", Root: dir, Path: "sub"})
		return err
	}
	hangs("hostPath", mountIt)
	hangs("subPath", bind)
	if _, err := m.Mount(ctx, podWith(volumeOf("e", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))); err != nil {
		t.Errorf("a volume elsewhere: %v", err)
	}
	thaw()
	for what, try := range map[string]func(context.Context) error{"hostPath": mountIt, "subPath": bind} {
		var last error
		proctest.Await(t, time.Minute, what+" after the thaw", func() bool {
			last = try(ctx)
			return last == nil
		})
		if last != nil {
			t.Error(fmt.Errorf("%s: %w", what, last))
		}
	}
	if err := m.Unmount(ctx, p.UID); err != nil {
		t.Error(err)
	}
}
