package podssocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// TestMain is also a caller, who says what he is answered, or one who connects to the socket of the Pods API.
func TestMain(m *testing.M) {
	proctest.Program(func() {
		peertest.Ready()
		var err error
		if os.Args[1] == "connect" {
			_, err = net.Dial("unix", os.Args[2])
		} else {
			_, err = NewClient(os.Args[1], unixgrpc.Rules{}).Listen(context.Background())
		}
		fmt.Println(err)
	})
	os.Exit(m.Run())
}

// made is podsync with a root folder.
type made struct{ root, socket string }

func serve(t *testing.T) made {
	t.Helper()
	sockets := proctest.TempDir(t, 0o750)
	m := made{root: proctest.TempDir(t, 0o755), socket: filepath.Join(sockets, "pods-api.sock")}
	if err := os.Lchown(sockets, -1, role.GroupNode); err != nil {
		t.Fatal(err)
	}
	l, err := unixgrpc.Listen(m.socket, 0o660, role.GroupNode)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{RootDir: m.root, Log: slog.New(slog.DiscardHandler), Count: func(string) {}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, unixgrpc.Bound(l, unixgrpc.BoundOptions{})) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m made) listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := NewClient(m.socket, unixgrpc.Rules{}).Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// talk connects to the socket's place and reads what its server says.
func (m made) talk(t *testing.T, l net.Listener) {
	t.Helper()
	c, err := net.Dial("unix", Path(m.root))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := served.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = served.Close()
	if said, err := io.ReadAll(c); err != nil || string(said) != "hello" {
		t.Errorf("the server says %q, %v", said, err)
	}
}

func TestTheSocketOfANewNode(t *testing.T) {
	m := serve(t)
	l := m.listen(t)
	m.talk(t, l)
	for path, want := range map[string]fs.FileMode{
		Path(m.root): fs.ModeSocket | 0o755, filepath.Dir(Path(m.root)): fs.ModeDir | 0o750,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s has %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if names, err := os.ReadDir(filepath.Dir(Path(m.root))); err != nil || len(names) != 1 {
		t.Errorf("the folder has %v, %v", names, err)
	}

	t.Log("nodeapi ends, and starts again")
	_ = l.Close()
	if _, err := net.Dial("unix", Path(m.root)); err == nil {
		t.Error("a socket without a server takes connections")
	}
	m.talk(t, m.listen(t))
}

func TestWhatIsInThePlace(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"a kubelet's socket": func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return l.Close()
		},
		"a file":          func(path string) error { return os.WriteFile(path, []byte("text"), 0o644) },
		"an empty folder": func(path string) error { return os.Mkdir(path, 0o755) },
		"a link":          func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a dead podsync's": func(path string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), unplaced), nil, 0o644)
		},
	} {
		t.Run(what, func(t *testing.T) {
			m := serve(t)
			if err := errors.Join(os.Mkdir(filepath.Dir(Path(m.root)), 0o750), put(Path(m.root))); err != nil {
				t.Fatal(err)
			}
			m.talk(t, m.listen(t))
		})
	}
	m := serve(t)
	if err := os.MkdirAll(filepath.Join(Path(m.root), "full"), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(m.socket, unixgrpc.Rules{}).Listen(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a folder with something in it: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(filepath.Dir(Path(m.root)), unplaced)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what could not be placed stays: %v", err)
	}
}

func TestAPathThatIsTooLong(t *testing.T) {
	root := filepath.Join(t.TempDir(), strings.Repeat("x", maxPath))
	if _, err := listen(Path(root)); err == nil || !strings.Contains(err.Error(), "--root-dir") {
		t.Errorf("%v", err)
	}
	dir := proctest.TempDir(t, 0o755)
	root = filepath.Join(dir, strings.Repeat("x", maxPath-len(Path(dir))-1))
	f, err := listen(Path(root))
	if err != nil {
		t.Fatalf("a path of %d bytes: %v", len(Path(root)), err)
	}
	_ = f.Close()
}

// TestWhoMayListenAndConnect: nodeapi gets the socket, and cannot even connect to it by its name.
func TestWhoMayListenAndConnect(t *testing.T) {
	m := serve(t)
	for _, r := range role.All() {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		got := peertest.Start(t, peertest.Options{UID: id.UID}, m.socket).Line(t)
		if may := r == role.NodeAPI || id.UID == 0; may != (got == "<nil>") {
			t.Errorf("%s asks for the socket and is answered %q", r, got)
		}
		m.listen(t)
		got = peertest.Start(t, peertest.Options{UID: id.UID}, "connect", Path(m.root)).Line(t)
		if may := id.UID == 0; may != (got == "<nil>") || !may && !strings.Contains(got, "permission denied") {
			t.Errorf("%s connects: %q", r, got)
		}
	}
}
