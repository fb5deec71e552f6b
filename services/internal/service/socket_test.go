package service

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// listenAt has a socket at a path until the test ends.
func listenAt(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestASocketClearsItsFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "plugins")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	other, file, link := filepath.Join(dir, "other"), filepath.Join(dir, "file"), filepath.Join(dir, "link")
	elsewhere := filepath.Join(t.TempDir(), "s")
	listenAt(t, other)
	listenAt(t, elsewhere)
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(elsewhere, link)); err != nil {
		t.Fatal(err)
	}
	s := Socket{Path: filepath.Join(dir, "own"), Clear: true}
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if exists(t, other) {
		t.Error("another socket of the folder is still there")
	}
	if !exists(t, file) || !exists(t, link) || !exists(t, elsewhere) {
		t.Error("more than sockets of the folder was removed")
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the folder is %v: %v", info, err)
	}
	if info, err := os.Stat(s.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v: %v", info, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("the folder has %v: %v", entries, err)
	}
}

// A kubelet that still runs keeps its socket and its plugins.
func TestASocketThatAnswersIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	own, other := filepath.Join(dir, "own"), filepath.Join(dir, "other")
	listenAt(t, own)
	listenAt(t, other)
	if l, err := (Socket{Path: own, Clear: true}).Listen(); !errors.Is(err, unixgrpc.ErrInUse) {
		t.Errorf("listener %v, error %v, want ErrInUse", l, err)
	}
	if !exists(t, own) || !exists(t, other) {
		t.Error("a socket was removed")
	}
}
