package frozen

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFrozen: a folder that is made while the file system is frozen is there after the thaw, and not before.
func TestFrozen(t *testing.T) {
	for name, mount := range map[string]func(*testing.T, string) *FileSystem{"disk": Disk, "FUSE": FUSE} {
		t.Run(name, func(t *testing.T) {
			f := mount(t, t.TempDir())
			make := func(name string) <-chan error {
				done := make(chan error, 1)
				go func() { done <- os.Mkdir(filepath.Join(f.Dir, name), 0o755) }()
				return done
			}
			if err := <-make("before"); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				f.Freeze()
				during := make("during")
				select {
				case err := <-during:
					t.Fatalf("a frozen file system has answered: %v", err)
				case <-time.After(200 * time.Millisecond):
				}
				f.Thaw()
				if err := <-during; err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(filepath.Join(f.Dir, "during")); err != nil {
					t.Fatal(err)
				}
			}
			f.End()
			if _, err := os.Stat(filepath.Join(f.Dir, "before")); err == nil {
				t.Error("it is still mounted")
			}
		})
	}
}
