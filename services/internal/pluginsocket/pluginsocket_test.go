package pluginsocket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listen serves a socket that says its own name to each caller.
func listen(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(filepath.Base(path)))
			_ = conn.Close()
		}
	}()
}

// shortDir is a folder whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDialFollowsNoLink(t *testing.T) {
	dir := shortDir(t)
	root := filepath.Join(dir, "root")
	listen(t, filepath.Join(root, "plugins/d/real.sock"))
	listen(t, filepath.Join(dir, "outside.sock"))
	for link, target := range map[string]string{
		"plugins/d/out.sock": filepath.Join(dir, "outside.sock"), "plugins/d/in.sock": "real.sock",
		"plugins/linked": "d", "plugins/out": dir, "plugins/loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "plugins/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(dir, "linked")
	if err := os.Symlink(root, linked); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		root + "/plugins/d/real.sock":      "", // no error
		linked + "/plugins/d/real.sock":    "", // the administrator may link the folder itself
		root + "/plugins/d/out.sock":       "/plugins/d/out.sock is a symbolic link: name the socket itself",
		root + "/plugins/d/in.sock":        "/plugins/d/in.sock is a symbolic link: name the socket itself",
		root + "/plugins/linked/real.sock": "is a symbolic link on the way to it: name the path without links",
		root + "/plugins/out/outside.sock": "is a symbolic link on the way to it: name the path without links",
		root + "/plugins/loop":             "/plugins/loop is a symbolic link: name the socket itself",
		root + "/plugins/file":             "/plugins/file is not a socket",
		root + "/plugins/none":             "no such file or directory",
		root + "/../outside.sock":          "invalid cross-device link",
	} {
		t.Run(strings.TrimPrefix(path, dir), func(t *testing.T) {
			folder := Folder{Path: root}
			if strings.HasPrefix(path, linked) {
				folder.Path = linked
			}
			conn, err := folder.Dial(t.Context(), path)
			if want != "" {
				if err == nil {
					_ = conn.Close()
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %v, without %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			name := make([]byte, 64)
			n, err := conn.Read(name)
			if got := string(name[:n]); got != "real.sock" {
				t.Errorf("connected to %q: %v", got, err)
			}
		})
	}
}

// A driver binds its socket by the path in its own container. The node's path may be longer than the address of a
// socket.
func TestDialALongPath(t *testing.T) {
	dir := shortDir(t)
	listen(t, filepath.Join(dir, "d", "csi.sock"))
	long := filepath.Join(dir, strings.Repeat("long", 30))
	if err := os.Rename(filepath.Join(dir, "d"), long); err != nil {
		t.Fatal(err)
	}
	conn, err := Folder{Path: dir}.Dial(t.Context(), filepath.Join(long, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}
