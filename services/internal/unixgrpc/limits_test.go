package unixgrpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// rawClient speaks HTTP/2 without the manners of gRPC's own client.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	reader sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	ended   bool
	initial int64
	windows map[uint32]int64 // how much may be sent; of the stream 0, the connection
	acked   [8]byte          // the ping that was answered last
}

func dialRaw(t *testing.T, path string) *rawClient {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{
		t: t, conn: conn, framer: http2.NewFramer(conn, conn),
		initial: 65535, windows: map[uint32]int64{0: 65535},
	}
	c.changed = sync.NewCond(&c.mu)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := c.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	c.reader.Go(c.read)
	t.Cleanup(func() { conn.Close(); c.reader.Wait() })
	return c
}

// read follows what the server says until the connection ends.
func (c *rawClient) read() {
	for {
		f, err := c.framer.ReadFrame()
		c.mu.Lock()
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			c.windows[f.StreamID] += int64(f.Increment)
		case *http2.SettingsFrame:
			if n, ok := f.Value(http2.SettingInitialWindowSize); ok {
				for id := range c.windows {
					if id != 0 {
						c.windows[id] += int64(n) - c.initial
					}
				}
				c.initial = int64(n)
			}
		case *http2.PingFrame:
			if f.IsAck() {
				c.acked = f.Data
			}
		}
		c.ended = err != nil
		c.changed.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// settle waits until the server has taken all that was sent, or has closed the connection, and reports which.
func (c *rawClient) settle(n uint64) (open bool) {
	var data [8]byte
	binary.BigEndian.PutUint64(data[:], n)
	_ = c.framer.WritePing(false, data) // the connection's end shows below
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.acked != data && !c.ended {
		c.changed.Wait()
	}
	return !c.ended
}

// begin begins a call. Its first message is to have this size.
func (c *rawClient) begin(id uint32, method string, size int) {
	c.t.Helper()
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: request(method), EndHeaders: true,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.windows[id] += c.initial
	c.mu.Unlock()
	if !c.send(id, binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), false) {
		c.t.Fatal("the server closed the connection")
	}
}

// send sends a frame of data as soon as the server lets it. It reports false if the connection ends.
func (c *rawClient) send(id uint32, data []byte, last bool) bool {
	n := int64(len(data))
	c.mu.Lock()
	for !c.ended && (c.windows[id] < n || c.windows[0] < n) {
		c.changed.Wait()
	}
	c.windows[id] -= n
	c.windows[0] -= n
	ended := c.ended
	c.mu.Unlock()
	return !ended && c.framer.WriteData(id, last, data) == nil
}

// request are the headers of a call.
func request(method string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		_ = e.WriteField(f) // a buffer takes all
	}
	return b.Bytes()
}

// heap is what is in use of it, when nothing is left to collect.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what a pool holds survives the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// A caller's headers are decoded before it is known what it may call. They can take forty times their size.
func TestHeadersWithoutEnd(t *testing.T) {
	l, path := listen(t)
	serve(t, Bound(l, BoundOptions{Peers: rolesOf(role.PLEG)}), ServerOptions{
		Policy: NewPolicy(nil), Peers: rolesOf(role.PLEG), Log: slog.New(slog.DiscardHandler),
	})
	before := heap()
	var clients []*rawClient
	for range maxConnections {
		c := dialRaw(t, path)
		clients = append(clients, c)
		// ":method: POST" in one byte, of which 380,000 would take 16 MB.
		block := bytes.Repeat([]byte{0x82}, 1000)
		err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
		for range 380 {
			if err != nil {
				break // the server has closed the connection
			}
			err = c.framer.WriteContinuation(1, false, block)
		}
	}
	for _, c := range clients {
		proctest.Await(t, 20*time.Second, "the end of the connection", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.ended
		})
	}
	if held := (heap() - before) >> 20; held > 64 {
		t.Errorf("headers on %d connections hold %d MiB", maxConnections, held)
	}
}

// largeServer is one that takes requests as large as podsync does, and gives pleg two methods.
func largeServer(t *testing.T, rules Rules) string {
	t.Helper()
	dir := proctest.TempDir(t, 0o750)
	if err := os.Chown(dir, 0, role.GroupNode); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	l, err := Listen(path, 0o660, role.GroupNode)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, Bound(l, BoundOptions{Peers: rules}), ServerOptions{
		Policy: NewPolicy(map[string][]role.Role{check: {role.PLEG}, watch: {role.PLEG}}), Peers: rules,
		MaxRequest: maxMessage, Log: slog.New(slog.DiscardHandler),
	})
	return path
}

// What callers have sent of requests takes memory before it is a message, and for as long as a call goes on.
func TestRequestsThatTakeMemory(t *testing.T) {
	for _, c := range []struct {
		name        string
		calls, size int // of each connection, and of each message
		frame       int
		whole       bool
	}{
		{name: "messages without an end", calls: 4, size: maxMessage, frame: 16 << 10},
		{name: "small frames", calls: 32, size: 60 << 10, frame: 1},
		{name: "frames that fill a quarter of their buffers", calls: 16, size: maxMessage, frame: 4<<10 + 1},
		{name: "calls that do not end", calls: 100, size: 512 << 10, frame: 16 << 10, whole: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := largeServer(t, rolesOf(role.PLEG))
			client := dialRaw(t, path)
			client.settle(1) // and know the windows
			before := heap()
			for i := range c.calls {
				client.begin(uint32(2*i+1), watch, c.size)
			}
			// Up to three quarters of the budget, and then beyond it.
			cost, frame := c.calls*(callCost+frameCost), make([]byte, c.frame)
			sent := map[uint32]int{}
			open := true
			next := func() {
				for i := range c.calls {
					id := uint32(2*i + 1)
					left := c.size - sent[id]
					if !c.whole {
						left-- // the last byte never comes
					}
					if n := min(left, c.frame); n > 0 && open {
						open = client.send(id, frame[:n], c.whole && n == left)
						sent[id] += n
						cost += frameCost + max(n, min(4*n, fullFrame))
					}
				}
			}
			for open && cost < budget*3/4 {
				next()
			}
			if !open || !client.settle(2) {
				t.Fatalf("the server closed the connection when %d MiB were charged", cost>>20)
			}
			got := heap() - before
			t.Logf("requests charged with %d MiB hold %d MiB", cost>>20, got>>20)
			if got > 2*budget {
				t.Errorf("they hold more than %d MiB", 2*budget>>20)
			}
			for open && cost < 2*budget {
				next()
			}
			if client.settle(3) {
				t.Errorf("the connection goes on with %d MiB charged", cost>>20)
			}
		})
	}
}

// A user whose requests take much keeps nothing from others.
func TestCallsBesideRequestsThatTakeMemory(t *testing.T) {
	roles := map[int][]role.Role{0: {role.PLEG}, 47104: {role.PLEG}}
	path := largeServer(t, Rules{Roles: func(uid int) []role.Role { return roles[uid] }})
	client := dialRaw(t, path)
	client.begin(1, watch, maxMessage)
	client.begin(3, watch, maxMessage)
	for range budget * 7 / 8 / (16 << 10) / 2 {
		if frame := make([]byte, 16<<10); !client.send(1, frame, false) || !client.send(3, frame, false) {
			t.Fatal("the server closed the connection")
		}
	}
	if !client.settle(1) {
		t.Fatal("the server closed the connection")
	}
	if got := peertest.Start(t, peertest.Options{UID: 47104}, path).Line(t); got != codes.OK.String() {
		t.Errorf("another user's call gets %s", got)
	}
}

// smallBuffers is a listener whose connections take few answers that are not read.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if unix, ok := conn.(*net.UnixConn); ok && err == nil {
		err = unix.SetWriteBuffer(1)
	}
	return conn, err
}

// A caller that reads no answers has the server keep what it would answer.
func TestUnreadAnswersEndTheConnection(t *testing.T) {
	var settings, calls bytes.Buffer
	f := http2.NewFramer(&settings, nil)
	if err := f.WriteSettings(make([]http2.Setting, 2730)...); err != nil { // as many as a frame has room for
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		frames func(i uint32) []byte
	}{
		{"settings", func(uint32) []byte { return settings.Bytes() }},
		{"refused calls", func(i uint32) []byte {
			calls.Reset()
			for j := range uint32(100) {
				err := http2.NewFramer(&calls, nil).WriteHeaders(http2.HeadersFrameParam{
					StreamID: 2*(100*i+j) + 1, BlockFragment: request("/no/method"), EndHeaders: true,
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			return calls.Bytes()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, path := listen(t)
			serve(t, Bound(smallBuffers{l}, BoundOptions{Peers: rolesOf()}), ServerOptions{
				Peers: rolesOf(), Log: slog.New(slog.DiscardHandler),
			})
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
				t.Fatal(err)
			}
			if err := http2.NewFramer(conn, nil).WriteSettings(); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			sent := 0
			for i := uint32(0); err == nil && sent < 2*budget; i++ {
				var n int
				n, err = conn.Write(c.frames(i))
				sent += n
			}
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("after %d KiB the connection goes on: %v", sent>>10, err)
			}
		})
	}
}

// What calls have cost is given back when they end, in whichever way.
func TestCallsCostNothingAfterwards(t *testing.T) {
	rules := rolesOf(role.PLEG)
	l, path := listen(t)
	g := &guard{}
	server := grpc.NewServer(grpc.Creds(peerCredentials{rules: rules, meter: g}), grpc.MaxConcurrentStreams(maxStreams))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })

	client := dial(t, path, DialOptions{})
	var group sync.WaitGroup
	for i := range 2 * maxStreams { // half of them wait for the others
		group.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%2 == 0 {
				if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
					t.Error(err)
				}
				return
			}
			stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	a := g.accounts.of(os.Getuid())
	proctest.Await(t, 20*time.Second, "the end of what the calls cost", func() bool { return a.cost.Load() == 0 })
}

// A request larger than a server takes ends its own call alone.
func TestARequestThatIsTooLarge(t *testing.T) {
	l, path := listen(t)
	rules := rolesOf(role.PLEG)
	serve(t, l, ServerOptions{
		Policy: NewPolicy(map[string][]role.Role{check: {role.PLEG}, watch: {role.PLEG}}), Peers: rules,
	})
	client := dial(t, path, DialOptions{})
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	large := &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", maxRequest)}
	if _, err := client.Check(t.Context(), large); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of more than 64 KiB: %v, want ResourceExhausted", err)
	}
	ended := make(chan error, 1)
	go func() { _, err := stream.Recv(); ended <- err }()
	if _, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		t.Errorf("the request ended another call: %v", err)
	default:
	}
}

// A server that sends settings and reads no answers loses its client.
func TestUnreadAnswersOfAClient(t *testing.T) {
	l, path := listen(t)
	defer l.Close()
	conn, err := Dial(path, DialOptions{Peers: rolesOf()},
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
			if unix, ok := conn.(*net.UnixConn); ok {
				err = unix.SetWriteBuffer(1)
			}
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for f := http2.NewFramer(server, nil); err == nil && sent < 2*budget; sent += fullFrame {
		err = f.WriteSettings(make([]http2.Setting, 2730)...)
	}
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after %d KiB the connection goes on: %v", sent>>10, err)
	}
}
