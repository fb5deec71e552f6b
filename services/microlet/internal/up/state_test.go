package up

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

// The ages of images survive a change of the placement, and no service gets a file of another's.
func TestStateFolder(t *testing.T) {
	dir := filepath.Join(filepath.Dir(openDir(t)), "state", "imagegc")
	owned := func(name string, uid int) {
		t.Helper()
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !isOwner(info, uid) {
			t.Errorf("%s is not uid %d's", name, uid)
		}
		if name == "" && info.Mode().Perm() != 0o700 {
			t.Errorf("the folder has mode %04o", info.Mode().Perm())
		}
	}
	const uid = 47105
	if err := makeStateFolder(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ages.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(filepath.Dir(dir), "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(precious, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, owner := range []int{uid, uid, 0, uid} {
		if err := makeStateFolder(dir, owner, role.GroupNode); err != nil {
			t.Fatal(err)
		}
		owned("", owner)
		owned("ages.json", owner)
		owned("link", 0)
	}
	if err := asUser(t, uid, "cat "+filepath.Join(dir, "ages.json")); err != nil {
		t.Error(err)
	}
}

func TestStateFolderThatIsNone(t *testing.T) {
	parent := filepath.Dir(openDir(t))
	link := filepath.Join(parent, "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	if err := makeStateFolder(link, 0, 0); err == nil || !strings.Contains(err.Error(), "is no folder: move it") {
		t.Errorf("a link: %v", err)
	}
	closed := filepath.Join(parent, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := makeStateFolder(filepath.Join(closed, "x"), 47105, role.GroupNode); err == nil ||
		!strings.Contains(err.Error(), "cannot enter "+closed) {
		t.Errorf("a closed folder: %v", err)
	}
}
