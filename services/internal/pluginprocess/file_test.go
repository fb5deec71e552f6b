package pluginprocess

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they give files away")
	}
	const refused, absent = "must be a program of root's that only root may write", "is not installed on this node"
	for name, test := range map[string]struct {
		mode  os.FileMode
		owner int
		want  string
	}{
		"program":                {0o755, 0, ""},
		"root's alone":           {0o500, 0, ""},
		"no program":             {0o644, 0, refused},
		"a group may write":      {0o775, 0, refused},
		"all may write":          {0o757, 0, refused},
		"of another user":        {0o755, 1000, refused},
		"absent":                 {0, 0, absent},
		"folder":                 {0o755 | os.ModeDir, 0, refused},
		"link to another user's": {0o755 | os.ModeSymlink, 1000, refused},
		"link to a program":      {0o755 | os.ModeSymlink, 0, ""},
		"below no folder":        {os.ModeIrregular, 0, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckFile(place(t, test.mode, test.owner))
			if test.want == "" && err != nil || test.want != "" &&
				(err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// place makes a file, a folder or a link to a file, of this mode and owner.
func place(t *testing.T, mode os.FileMode, owner int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	var err error
	switch mode.Type() {
	case os.ModeDir:
		err = os.Mkdir(path, mode.Perm())
	case os.ModeIrregular:
		return filepath.Join("/dev/null", "plugin")
	default:
		if mode == 0 {
			return path
		}
		err = os.WriteFile(path, []byte("#!/bin/true\n"), mode.Perm())
	}
	if err = errors.Join(err, os.Chmod(path, mode.Perm()), os.Chown(path, owner, 0)); err != nil {
		t.Fatal(err)
	}
	if mode.Type() != os.ModeSymlink {
		return path
	}
	if err := os.Symlink(path, path+"-link"); err != nil {
		t.Fatal(err)
	}
	return path + "-link"
}
