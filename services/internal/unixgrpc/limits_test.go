package unixgrpc

import (
	"bytes"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// rawClient speaks HTTP/2 without the manners of gRPC's own client.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	reader sync.WaitGroup

	mu    sync.Mutex
	ended bool
}

func dialRaw(t *testing.T, path string) *rawClient {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, conn: conn, framer: http2.NewFramer(conn, conn)}
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
		if _, err := c.framer.ReadFrame(); err != nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
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
