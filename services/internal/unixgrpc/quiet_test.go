package unixgrpc

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/microlet/microlet/proto/role"
)

// tap stands between a client and the server at path, and counts the frames that pass.
func tapped(t *testing.T, path string) (at string, end func() map[http2.FrameType]int) {
	t.Helper()
	at = filepath.Join(filepath.Dir(path), "tap.sock")
	l, err := Listen(at, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[http2.FrameType]int{}
	count := func(r io.Reader) {
		framer := http2.NewFramer(io.Discard, r)
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return // the connection's end
			}
			mu.Lock()
			seen[f.Header().Type]++
			mu.Unlock()
		}
	}
	var client, server net.Conn
	wg.Go(func() {
		var err error
		if client, err = l.Accept(); err != nil {
			t.Error(err)
			return
		}
		if server, err = net.Dial("unix", path); err != nil {
			t.Error(err, client.Close())
			return
		}
		pass := func(to, from net.Conn, preface int64) {
			_, _ = io.CopyN(to, from, preface)
			r, w := io.Pipe()
			wg.Go(func() { count(r) })
			_, _ = io.Copy(to, io.TeeReader(from, w))
			_, _ = w.Close(), to.Close()
		}
		wg.Go(func() { pass(server, client, int64(len(http2.ClientPreface))) })
		wg.Go(func() { pass(client, server, 0) })
	})
	return at, func() map[http2.FrameType]int {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		wg.Wait()
		return seen
	}
}

func TestACallIsNoMoreThanItsMessages(t *testing.T) {
	l, path := listen(t)
	policy := NewPolicy(nil)
	policy.Allow(check, role.Podsync)
	r := serve(t, l, ServerOptions{Policy: policy, Peers: rolesOf(role.Podsync)})
	at, end := tapped(t, path)
	conn, err := Dial(at, DialOptions{Peers: rolesOf(role.Podsync)})
	if err != nil {
		t.Fatal(err)
	}
	const calls = 20
	for range calls {
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(),
			&grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		<-r.peers
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	seen := end()
	if seen[http2.FrameData] != 2*calls {
		t.Fatalf("%d frames of data passed, want a question and an answer for each of %d calls: %v",
			seen[http2.FrameData], calls, seen)
	}
	if seen[http2.FramePing] != 0 {
		t.Errorf("%d pings went beside %d calls, want none: the windows' sizes must be fixed", seen[http2.FramePing],
			calls)
	}
}
