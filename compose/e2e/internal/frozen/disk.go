package frozen

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FileSystem can be frozen. Changes of what is in it wait then, and in one of FUSE reads do so too.
type FileSystem struct {
	// Dir is where it is mounted.
	Dir string

	t      *testing.T
	frozen bool
	freeze func() error
	thaw   func(ctx context.Context) error
	// unmount ends the file system. It may fail because it is still in use.
	unmount func() error
}

// Freeze has it stop answering.
func (f *FileSystem) Freeze() {
	f.t.Helper()
	if err := f.freeze(); err != nil {
		f.t.Fatal(err)
	}
	f.frozen = true
}

// Thaw has it answer again, and what waited goes on.
func (f *FileSystem) Thaw() {
	f.t.Helper()
	if !f.frozen {
		return
	}
	f.frozen = false
	if err := f.thaw(context.WithoutCancel(f.t.Context())); err != nil {
		f.t.Error(err)
	}
}

// patience is for who still uses a file system that is to end.
const patience = 2 * time.Minute

// endsWith has the file system end with the test, thawed whatever has happened. It returns what ends it before.
func (f *FileSystem) endsWith(t *testing.T) {
	t.Helper()
	f.unmount = sync.OnceValue(f.unmountIn(patience))
	t.Cleanup(func() {
		f.Thaw()
		if err := f.unmount(); err != nil {
			t.Error(err)
		}
	})
}

func (f *FileSystem) unmountIn(limit time.Duration) func() error {
	unmount := f.unmount
	return func() error {
		deadline := time.Now().Add(limit)
		for {
			err := unmount()
			if err == nil || time.Now().After(deadline) {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// End unmounts it, once it is no longer in use.
func (f *FileSystem) End() {
	f.t.Helper()
	if err := f.unmount(); err != nil {
		f.t.Fatal(err)
	}
}

// Disk mounts an ext4 on a loop device at a folder until the test has ended.
func Disk(t *testing.T, dir string) *FileSystem {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	f := &FileSystem{
		Dir: dir, t: t,
		freeze:  func() error { return run(t.Context(), "fsfreeze", "--freeze", dir) },
		thaw:    func(ctx context.Context) error { return run(ctx, "fsfreeze", "--unfreeze", dir) },
		unmount: func() error { return unix.Unmount(dir, 0) },
	}
	for _, args := range [][]string{
		{"truncate", "-s", "16M", image}, {"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir},
	} {
		if err := run(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	f.endsWith(t)
	return f
}

func run(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
