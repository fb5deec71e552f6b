package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
)

// exchange puts a link into the place of the version that is written to dir, as a pod may that has the volume's folder
// as a hostPath, and reports whether that was before the whole number of files was written. It gives up when the
// context ends.
func exchange(ctx context.Context, dir, target string, whole int) bool {
	aside := filepath.Join(dir, "..aside")
	if os.Symlink(target, aside) != nil {
		return false
	}
	for ctx.Err() == nil {
		names, err := filepath.Glob(filepath.Join(dir, "..2*"))
		if err != nil || len(names) == 0 {
			continue
		}
		if unix.Renameat2(unix.AT_FDCWD, names[0], unix.AT_FDCWD, aside, unix.RENAME_EXCHANGE) != nil {
			return false
		}
		written, err := os.ReadDir(aside)
		return err == nil && len(written) < whole
	}
	return false
}

// TestAVersionThatBecomesALink: the folder of a volume is open to all, and what is written as root stays in it.
func TestAVersionThatBecomesALink(t *testing.T) {
	parent := t.TempDir()
	outside := filepath.Join(parent, "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	files := map[string]file{}
	for i := range 200 {
		files[fmt.Sprint("key-", i)] = file{data: []byte("x"), mode: 0o644}
	}
	for try, exchanged := 0, 0; exchanged < 8; try++ { // one alone may meet a step that fails
		dir := filepath.Join(parent, fmt.Sprint("volume-", try))
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var other sync.WaitGroup
		other.Go(func() {
			if exchange(ctx, dir, outside, len(files)) {
				exchanged++
			}
		})
		_ = writeAtomically(dir, files, func() error { return nil }) // it fails or not, as the link comes
		cancel()
		other.Wait()
	}
	entries, err := os.ReadDir(outside)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		t.Errorf("%d files were written outside of the volume, such as %s", len(entries), entries[0].Name())
	}
	if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder outside became %v, %v", info.Mode(), err)
	}
}

// TestAVersionOfAnothersMaking: what another process puts into the volume's folder is neither waited for nor read
// without an end.
func TestAVersionOfAnothersMaking(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a FIFO":         func(path string) error { return unix.Mkfifo(path, 0o666) },
		"an endless one": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a long one": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o666),
				os.Truncate(path, 1<<40))
		},
		"a link outside": func(path string) error { return os.Symlink("../../same", path) },
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "volume")
			theirs := filepath.Join(dir, "..theirs")
			err := errors.Join(os.MkdirAll(theirs, 0o777), os.Symlink("..theirs", filepath.Join(dir, dataLink)),
				put(filepath.Join(theirs, "key")), os.WriteFile(filepath.Join(parent, "same"), []byte("value"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			if err := writeAtomically(dir, map[string]file{"key": {data: []byte("value"), mode: 0o640}},
				func() error { return nil }); err != nil {
				t.Fatal(err)
			}
			if link, err := os.Readlink(filepath.Join(dir, dataLink)); err != nil || !strings.HasPrefix(link, "..2") {
				t.Errorf("the current version is %s, %v", link, err)
			}
			if info, err := os.Lstat(filepath.Join(dir, dataLink, "key")); err != nil ||
				info.Mode() != fs.FileMode(0o640) || read(t, filepath.Join(dir, "key")) != "value" {
				t.Errorf("the file is %v, %v", info, err)
			}
		})
	}
}

// TestNothingButAFileIsCompared: a pod with the volume's folder as a hostPath made what is in the file's place.
func TestNothingButAFileIsCompared(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	notregular.Each(t, filepath.Join(dir, "f"), func(t *testing.T) {
		if err := holds(root, "f", nil); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Error(err)
		}
	})
}

// TestNothingButAFolderIsListed: what was a folder a moment ago may be a device by now.
func TestNothingButAFolderIsListed(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	notregular.Each(t, filepath.Join(dir, "f"), func(t *testing.T) {
		if _, err := fs.ReadDir(folders{root}, "f"); !errors.Is(err, unix.ENOTDIR) {
			t.Error(err)
		}
	})
}
