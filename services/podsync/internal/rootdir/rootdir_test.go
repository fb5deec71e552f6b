package rootdir

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAFolderOfOthersIsClosed(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "checkpoints")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := closeFolder(folder); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(folder)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}
}

// A link would have podsync change a folder that another user chose.
func TestALinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "checkpoints")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := closeFolder(link); err == nil {
		t.Error("a link is taken for a folder")
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("its target has mode %v, %v", info.Mode(), err)
	}
}
