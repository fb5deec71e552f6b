package rotate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/services/internal/testing/notregular"
)

// content is what a folder holds, by name.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

// TestNothingBehindALinkIsRotated: a pod that may write to the folder of all logs puts a link in the place of a folder
// or of a log.
func TestNothingBehindALinkIsRotated(t *testing.T) {
	for what, replaced := range map[string]func(log string) string{
		"the container's folder": filepath.Dir,
		"the pod's folder":       func(log string) string { return filepath.Dir(filepath.Dir(log)) },
		"the log":                func(log string) string { return log },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 2)
				b.container("pod/c")
				outside := t.TempDir()
				replaced := replaced(b.paths["pod/c"])
				path, err := filepath.Rel(replaced, b.paths["pod/c"])
				if err != nil {
					t.Fatal(err)
				}
				theirs := filepath.Join(outside, path)
				if path == "." {
					theirs = filepath.Join(outside, "0.log")
				}
				err = os.MkdirAll(filepath.Dir(theirs), 0o755)
				for _, name := range []string{theirs, theirs + ".1", theirs + ".2", theirs + ".3.tmp"} {
					err = errors.Join(err, os.WriteFile(name, []byte("a text that is not a container's"), 0o600))
				}
				before := content(t, filepath.Dir(theirs))
				target := outside
				if path == "." {
					target = theirs
				}
				if err := errors.Join(err, os.RemoveAll(replaced), os.Symlink(target, replaced)); err != nil {
					t.Fatal(err)
				}
				b.run()
				time.Sleep(time.Minute)
				synctest.Wait()
				if diff := cmp.Diff(before, content(t, filepath.Dir(theirs))); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestNothingButALogIsCompressed: a pod that may write to the folder of all logs puts something in the place of the
// file that is written, or of a rotated log.
func TestNothingButALogIsCompressed(t *testing.T) {
	dir := t.TempDir()
	rotated := filepath.Join(dir, "0.log.1")
	path := rotated + temporary
	try := func(t *testing.T) {
		if err := os.WriteFile(rotated, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := open(filepath.Join(dir, "0.log"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.close()
		if err := f.compressOne(t.Context(), "0.log.1"); !errors.Is(err, os.ErrExist) {
			t.Error(err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("what was in the place of the file: %v", err)
		}
	}
	notregular.Each(t, path, try)
	outside := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(outside, []byte("precious"), 0o600), os.Symlink(outside, path)); err != nil {
		t.Fatal(err)
	}
	try(t)
	if text, err := os.ReadFile(outside); err != nil || !strings.HasPrefix(string(text), "precious") {
		t.Errorf("what a link leads to became %q, %v", text, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	notregular.Each(t, rotated, func(t *testing.T) {
		f, err := open(filepath.Join(dir, "0.log"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.close()
		if err := f.compressOne(t.Context(), "0.log.1"); err == nil {
			t.Error("something else was compressed")
		}
		if _, err := os.Lstat(rotated); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	})
}

// TestAFileWithoutAnEndIsNotCompressed: such a log takes nothing of the disk, and all of the time.
func TestALogThatHasGrownTooFastIsNotCompressed(t *testing.T) {
	dir := t.TempDir()
	rotated := filepath.Join(dir, "0.log.20260101-000000")
	f, err := open(filepath.Join(dir, "0.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	// One that is tried is seen to consist of holes.
	if err := errors.Join(os.WriteFile(rotated, nil, 0o600), os.Truncate(rotated, tooLarge+2)); err != nil {
		t.Fatal(err)
	}
	if err := f.compress(t.Context(), 10<<20); err != nil {
		t.Errorf("logs are to have 10 MiB: %v", err)
	}
	if err := f.compress(t.Context(), tooLarge); !errors.Is(err, errSparse) {
		t.Errorf("logs are to have as much: %v", err)
	}
}

func TestAFileWithoutAnEndIsNotCompressed(t *testing.T) {
	dir := t.TempDir()
	rotated := filepath.Join(dir, "0.log.1")
	if err := errors.Join(os.WriteFile(rotated, []byte("text"), 0o600), os.Truncate(rotated, 1<<30)); err != nil {
		t.Fatal(err)
	}
	f, err := open(filepath.Join(dir, "0.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.compressOne(t.Context(), "0.log.1"); !errors.Is(err, errSparse) {
		t.Error(err)
	}
	if _, err := os.Lstat(rotated); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}
