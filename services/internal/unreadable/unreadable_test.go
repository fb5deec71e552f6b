package unreadable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWhy(t *testing.T) {
	dir := t.TempDir()
	file, circle := filepath.Join(dir, "file"), filepath.Join(dir, "circle")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(circle, circle)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "absent"): "it does not exist",
		dir:                          "it is a folder",
		filepath.Join(file, "below"): "a part of its path is no folder",
		circle:                       "its links go round in a circle",
		filepath.Join(dir, strings.Repeat("x", 300)): "its name is too long",
	} {
		_, err := os.ReadFile(path)
		if fault, remedy := Why(err); fault != want || remedy == "" {
			t.Errorf("%v: %q, %q; want %q", err, fault, remedy, want)
		}
	}
	for _, err := range []error{
		&fs.PathError{Op: "open", Path: file, Err: syscall.EACCES}, &fs.PathError{Op: "read", Path: file, Err: syscall.EIO},
		errors.New("other"),
	} {
		if fault, remedy := Why(err); fault == "" || remedy == "" || strings.Contains(fault, file) {
			t.Errorf("%v: %q, %q", err, fault, remedy)
		}
	}
}
