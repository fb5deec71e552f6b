// Package blocktest makes block devices for tests.
package blocktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// New returns a block device of that many bytes, all zero, which ends with the test.
func New(t *testing.T, size int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it makes loop devices")
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput() //nolint:gosec // the test names it
	if err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		detach := exec.Command("losetup", "--detach", device) //nolint:gosec // losetup has named it
		if out, err := detach.CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return device
}

// Over lists the loop devices over files below a folder.
func Over(t *testing.T, dir string) []string {
	t.Helper()
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range files {
		if text, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(text), real+"/") {
			found = append(found, filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(path)))))
		}
	}
	return found
}
