package walls

import (
	"io/fs"
	"os"
	"slices"
	"testing"
	"testing/fstest"
)

func TestOpens(t *testing.T) {
	workspace := os.DirFS(top(t))
	found, err := OpensUnseen(workspace)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range found {
		t.Error(problem)
	}
	for path := range unseen {
		if _, err := fs.Stat(workspace, path); err != nil {
			t.Errorf("%s may open without a look and does not exist: %v", path, err)
		}
	}
}

// TestOpensAreFound is the positive control.
func TestOpensAreFound(t *testing.T) {
	source := func(flag string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package a\n\n// unix.O_NONBLOCK is in a comment.\nvar flags = " + flag + "\n")}
	}
	workspace := fstest.MapFS{
		"services/podsync/internal/a/a.go":             source("os.O_RDONLY | unix.O_NONBLOCK"),
		"services/podsync/internal/a/b.go":             source("syscall.O_NONBLOCK"),
		"services/podsync/internal/a/c.go":             source("os.O_RDONLY"),
		"services/podsync/internal/a/a_test.go":        source("unix.O_NONBLOCK"),
		"services/internal/regularfile/regularfile.go": source("unix.O_NONBLOCK"),
		"compose/a.go": source("unix.O_NONBLOCK"),
	}
	found, err := OpensUnseen(workspace)
	if want := []string{
		"services/podsync/internal/a/a.go:4:27 opens before it looks: use regularfile",
		"services/podsync/internal/a/b.go:4:13 opens before it looks: use regularfile",
	}; err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q, %v", found, err)
	}
}
