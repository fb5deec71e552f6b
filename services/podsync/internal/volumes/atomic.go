package volumes

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/removal"
)

// The names inside of a projected volume: each version of the files is a folder of its
// own, "..data" links to the current one, and what containers see links through that.
const (
	dataLink = "..data"
	nextLink = "..data_tmp"
)

// writeAtomically makes dir hold files. It calls own when a new version of them was written and no container can see it
// yet. Files that are as they were are not written again.
//
// The folder is open to all users, and a pod that has it as a hostPath writes to it too. Links that such a pod puts
// there lead nowhere outside of the folder, and its pipes block no call.
func writeAtomically(dir string, files map[string]file, own func() error) error {
	clean := make(map[string]file, len(files))
	for path, f := range files {
		if err := checkPath(path); err != nil {
			return err
		}
		clean[filepath.Clean(path)] = f
	}
	files = clean
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // its files are closed one by one
	old, err := root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the current version: %w", err)
	}
	if old != "" && (filepath.Base(old) != old || !strings.HasPrefix(old, "..") || len(old) < 3) {
		return fmt.Errorf("the current version is %q: %s must link to a folder of the volume whose name begins with '..'",
			old, dataLink)
	}
	if old == "" || !current(root, old, files) {
		if err := writeVersion(root, files, own); err != nil {
			return err
		}
	} else {
		old = "" // it stays
	}
	if err := show(dir, files); err != nil {
		return err
	}
	if old == "" {
		return nil
	}
	if err := removal.Tree(context.Background(), filepath.Join(dir, old)); err != nil {
		return fmt.Errorf("remove the old version: %w", err)
	}
	return nil
}

// checkPath refuses paths that would leave the volume or meet its own names.
func checkPath(path string) error {
	switch {
	case path == "" || filepath.IsAbs(path):
		return fmt.Errorf("path %q must be relative and not empty", path)
	case filepath.Clean(path) == ".":
		return fmt.Errorf("path %q must name a file", path)
	case strings.HasPrefix(filepath.Clean(path), ".."):
		return fmt.Errorf("path %q must not start with '..'", path)
	case len(path) > 4096:
		return fmt.Errorf("path of %d bytes is longer than 4096", len(path))
	}
	for _, part := range strings.Split(path, "/") {
		if part == ".." || len(part) > 255 {
			return fmt.Errorf("path %q must not contain '..' or a name longer than 255 bytes", path)
		}
	}
	return nil
}

// current reports whether the version holds exactly these files.
func current(root *os.Root, version string, files map[string]file) bool {
	seen := 0
	err := fs.WalkDir(folders{root}, version, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(version, path)
		if err != nil {
			return err
		}
		want, ok := files[name]
		if !ok {
			return fs.ErrNotExist
		}
		if err := holds(root, path, want.content()); err != nil {
			return err
		}
		seen++
		return nil
	})
	return err == nil && seen == len(files)
}

// holds fails unless the path is a file of just this content.
func holds(root *os.Root, path string, data []byte) error {
	f, err := regularfile.In(root, path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != int64(len(data)) {
		return fs.ErrInvalid
	}
	have, err := io.ReadAll(io.LimitReader(f, int64(len(data))+1))
	if err == nil && !bytes.Equal(have, data) {
		err = fs.ErrInvalid
	}
	return err
}

func writeVersion(root *os.Root, files map[string]file, own func() error) (err error) {
	name := time.Now().UTC().Format("..2006_01_02_15_04_05.") + rand.Text()
	if err := root.Mkdir(name, 0o700); err != nil {
		return fmt.Errorf("new version: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removal.Tree(context.Background(), filepath.Join(root.Name(), name)))
		}
	}()
	// All goes through the open folder, whatever has its name meanwhile.
	version, err := root.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("new version: %w", err)
	}
	defer func() { _ = version.Close() }() // its files are closed one by one
	if err := version.Chmod(".", 0o755); err != nil {
		return fmt.Errorf("new version: %w", err)
	}
	for path, f := range files {
		if err := writeFile(version, path, f); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	if err := own(); err != nil {
		return err
	}
	if err := root.Remove(nextLink); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what a crash left: %w", err)
	}
	if err := root.Symlink(name, nextLink); err != nil {
		return fmt.Errorf("link the new version: %w", err)
	}
	if err := root.Rename(nextLink, dataLink); err != nil {
		return fmt.Errorf("switch to the new version: %w", err)
	}
	return nil
}

// writeFile makes a file that was not there.
func writeFile(version *os.Root, path string, f file) (err error) {
	if err := version.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(f.mode) & fs.ModePerm
	to, err := version.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := to.Write(f.content()); err != nil {
		return err
	}
	if err := to.Chmod(mode); err != nil { // the umask
		return err
	}
	if f.owner == nil {
		return nil
	}
	return to.Chown(int(*f.owner), -1)
}

// show makes the links that containers see, one for each first part of a path, and
// removes those of files that are gone.
func show(dir string, files map[string]file) error {
	wanted := map[string]*int64{}
	for path, f := range files {
		first, _, _ := strings.Cut(path, "/")
		if owner, ok := wanted[first]; !ok || owner == nil {
			wanted[first] = f.owner
		}
	}
	for name, owner := range wanted {
		link := filepath.Join(dir, name)
		err := os.Symlink(filepath.Join(dataLink, name), link)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("show %s: %w", name, err)
		}
		if err := ownLink(dir, link, owner); err != nil {
			return fmt.Errorf("show %s: %w", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the volume: %w", err)
	}
	for _, e := range entries {
		if _, ok := wanted[e.Name()]; ok || strings.HasPrefix(e.Name(), "..") || e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hide %s: %w", e.Name(), err)
		}
	}
	return nil
}

// ownLink gives a link to the group that the volume's folder hands on, and to the owner of what it
// leads to. One that has them already is left alone: a change would wake the processes that watch the folder.
func ownLink(dir, link string, owner *int64) error {
	folder, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	info, err := os.Lstat(link)
	if err != nil {
		return err
	}
	uid, gid := -1, -1
	has := info.Sys().(*syscall.Stat_t)
	if group := folder.Sys().(*syscall.Stat_t).Gid; folder.Mode()&fs.ModeSetgid != 0 && has.Gid != group {
		gid = int(group)
	}
	if owner != nil && int64(has.Uid) != *owner {
		uid = int(*owner)
	}
	if uid < 0 && gid < 0 || info.Mode()&fs.ModeSymlink == 0 {
		return nil
	}
	return os.Lchown(link, uid, gid)
}
