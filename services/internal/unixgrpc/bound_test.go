package unixgrpc

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// boundedSocket writes a byte to each connection that it takes, and returns the socket's name.
func boundedSocket(t *testing.T, rules Rules) (string, *bounded) {
	t.Helper()
	name := fmt.Sprintf("@%s-%d", t.Name(), os.Getpid()) // in no folder, which the test's other users could not enter
	socket, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	l := Bound(socket, BoundOptions{Peers: rules, Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Write([]byte("x"))
				_, _ = io.Copy(io.Discard, conn) // until the client ends it
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return name, l.(*bounded)
}

// connect connects as a user and reports whether the connection was taken.
func connect(t *testing.T, name string, uid int) (net.Conn, bool) {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	dialed := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and its user with it
		if uid != os.Geteuid() {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				dialed <- result{err: errno}
				return
			}
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
		}
		if err != nil {
			dialed <- result{err: err}
			return
		}
		conn, err := fileConn(fd)
		dialed <- result{conn, err}
	}()
	got := <-dialed
	if got.err != nil {
		t.Fatalf("connect as uid %d: %v", uid, got.err)
	}
	t.Cleanup(func() { got.conn.Close() })
	n, err := got.conn.Read(make([]byte, 1))
	return got.conn, n == 1 && err == nil
}

func TestABoundOnTheConnectionsOfAUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root can connect as other users")
	}
	const service, other, stranger, another = 47104, 47105, 1000, 1001
	rules := Rules{Roles: func(uid int) []role.Role {
		return map[int][]role.Role{service: {role.Prober}, other: {role.PLEG}}[uid]
	}}
	name, bound := boundedSocket(t, rules)
	for _, user := range []int{service, stranger} {
		var first net.Conn
		for i := range maxConnections {
			conn, taken := connect(t, name, user)
			if !taken {
				t.Fatalf("connection %d of uid %d was refused", i+1, user)
			}
			if first == nil {
				first = conn
			}
		}
		if _, taken := connect(t, name, user); taken {
			t.Errorf("uid %d has a connection more than the bound", user)
		}
		if user == stranger {
			if _, taken := connect(t, name, another); taken {
				t.Error("a second stranger has places of its own")
			}
		}
		// An end frees the place as soon as the server has noticed it.
		first.Close()
		proctest.Await(t, 10*time.Second, "the place that is free again",
			func() bool { _, taken := connect(t, name, user); return taken })
		if _, taken := connect(t, name, other); !taken {
			t.Errorf("uid %d took the places of another service", user)
		}
	}
	if got := testutil.ToFloat64(bound.refused); got < 3 {
		t.Errorf("%v refusals counted, want 3 at least", got)
	}
}

// holdAllPlaces opens as many connections as one user may have, and returns how many the server serves.
func holdAllPlaces(path string) int {
	served := 0
	for range maxConnections {
		conn, err := net.Dial("unix", path)
		if err != nil {
			break
		}
		held = append(held, conn)
		// A server of HTTP/2 answers its client's first words with its own.
		_, err = conn.Write([]byte(http2.ClientPreface))
		if err == nil {
			err = http2.NewFramer(conn, conn).WriteSettings()
		}
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 9))
		}
		if err == nil {
			served++
		}
	}
	return served
}

// held keeps connections from the collector, which would close them.
var held []net.Conn

// Root in a pod, which may see the node's sockets in a hostPath, is not root on the node.
func TestRootInAPodTakesNoPlaceOfRoot(t *testing.T) {
	dir := proctest.TempDir(t, 0o750)
	path := filepath.Join(dir, "s.sock")
	l, err := Listen(path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := serve(t, Bound(l, BoundOptions{Log: log}), ServerOptions{
		Policy: NewPolicy(map[string][]role.Role{check: {role.Up}}), Log: log,
	})
	pod := peertest.Cgroup(t, "kubepods/pod0b4ad7d5-4f2c-4a5e-9a4c-6a8c9b3a7f10/c")
	inPod := peertest.Start(t, peertest.Options{Cgroups: pod}, holdPrefix+path)
	if got := inPod.Line(t); got != fmt.Sprint(maxConnections) {
		t.Fatalf("root in a pod has %s connections, want %d", got, maxConnections)
	}
	if got := peertest.Start(t, peertest.Options{Cgroups: pod}, holdPrefix+path).Line(t); got != "0" {
		t.Errorf("root in a pod has %s further connections", got)
	}
	if got := peertest.Start(t, peertest.Options{}, path).Line(t); got != codes.OK.String() {
		t.Fatalf("root gets %s while root in a pod holds %d connections", got, maxConnections)
	}
	if p := <-r.peers; p.UID != 0 || !p.Is(role.Up) {
		t.Errorf("the caller is %s, want root of the node", p)
	}
}
