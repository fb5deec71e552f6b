package atomicfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWrite(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: they give files away")
	}
	path := filepath.Join(t.TempDir(), "file")
	for _, test := range []struct {
		text string
		a    Attributes
		uid  uint32
	}{
		{"one", Attributes{Mode: 0o600, UID: -1, GID: -1}, 0},
		{"two", Attributes{Mode: 0o666, UID: 1000, GID: 100, Durable: true}, 1000}, // whatever the umask is
		{"", Attributes{Mode: 0o400}, 0},
	} {
		if err := Write(path, []byte(test.text), test.a); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || string(text) != test.text {
			t.Errorf("the file holds %q, %v, want %q", text, err, test.text)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t); info.Mode() != test.a.Mode || owner.Uid != test.uid {
			t.Errorf("%q: mode %v of user %d, want %v of %d", test.text, info.Mode(), owner.Uid, test.a.Mode, test.uid)
		}
		alone(t, path)
	}
}

// Who has the file open keeps what was in it.
func TestAnOpenFileIsNotChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	own := Attributes{Mode: 0o600, UID: -1, GID: -1}
	if err := Write(path, []byte("old"), own); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(path, []byte("new"), own); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 9)
	if n, err := f.Read(text); err != nil || string(text[:n]) != "old" {
		t.Errorf("it reads %q, %v", text[:n], err)
	}
}

func TestAFailedWriteLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.MkdirAll(filepath.Join(path, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("x"), Attributes{Mode: 0o600, UID: -1, GID: -1}); err == nil {
		t.Error("a folder was replaced")
	}
	alone(t, path)
	if err := Write(filepath.Join(path, "none", "file"), nil, Attributes{}); !os.IsNotExist(err) {
		t.Errorf("without a folder: %v", err)
	}
}

func alone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

// TestOneWriterLeavesOneFile: each process that was killed has left what it had written.
func TestOneWriterLeavesOneFile(t *testing.T) {
	dir := t.TempDir()
	path, elsewhere := filepath.Join(dir, "file"), filepath.Join(t.TempDir(), "elsewhere")
	temporary := filepath.Join(dir, ".new-file")
	own := Attributes{Mode: 0o600, UID: -1, GID: -1, Durable: true, OneWriter: true}
	for name, leave := range map[string]func() error{
		"nothing": func() error { return nil },
		"a part":  func() error { return os.WriteFile(temporary, []byte("par"), 0o400) },
		"a link":  func() error { return os.Symlink(elsewhere, temporary) },
	} {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, []byte(name), own); err != nil {
			t.Errorf("%s was left: %v", name, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != name {
			t.Errorf("%s was left: the file holds %q, %v", name, text, err)
		}
		alone(t, path)
	}
	if _, err := os.Lstat(elsewhere); !os.IsNotExist(err) {
		t.Errorf("a link was followed: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(temporary, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, nil, own); err == nil {
		t.Error("no error, although the temporary name is taken")
	}
}
