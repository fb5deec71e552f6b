package unixgrpc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"

	"github.com/microlet/microlet/proto/role"
)

// metered returns a metered connection that is read from, its client's end, and why the meter closed it.
func metered(t *testing.T) (client net.Conn, c *meteredConn, closed chan error) {
	t.Helper()
	client, server := net.Pipe()
	closed = make(chan error, 1)
	c = newMeteredConn(server, newAccount(), func(why error) { closed <- why })
	t.Cleanup(func() { _, _ = client.Close(), c.Close() })
	go func() { _, _ = io.Copy(io.Discard, readOnly{c}) }()
	return client, c, closed
}

type readOnly struct{ io.Reader }

// bytesOf are what a client sends, the preface first.
func bytesOf(t *testing.T, send func(f *http2.Framer) error) []byte {
	t.Helper()
	b := bytes.NewBufferString(http2.ClientPreface)
	if err := send(http2.NewFramer(b, nil)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func headersOf(id uint32) http2.HeadersFrameParam {
	return http2.HeadersFrameParam{StreamID: id, BlockFragment: request(check), EndHeaders: true}
}

// TestFramesWithoutEnd: the server reads them no faster than it would read calls.
func TestFramesWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, closed := metered(t)
		const frames, times = 1000, 100
		sent := bytesOf(t, func(f *http2.Framer) error {
			var err error
			for range frames {
				err = errors.Join(err, f.WriteWindowUpdate(0, 1))
			}
			return err
		})
		began := time.Now()
		for i := range times {
			if i > 0 {
				sent = bytes.TrimPrefix(sent, []byte(http2.ClientPreface))
			}
			if _, err := client.Write(sent); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if took := time.Since(began); took < 9*time.Second {
			t.Errorf("%d frames are read within %v", frames*times, took)
		}
		time.Sleep(time.Minute) // until the last ones are read
		select {
		case why := <-closed:
			t.Errorf("closed: %v", why)
		default:
		}
	})
}

// Frames are found wherever the kernel cuts what is read.
func TestFramesInPieces(t *testing.T) {
	sent := bytesOf(t, func(f *http2.Framer) error {
		for id := uint32(1); id < 9; id += 2 {
			if err := f.WriteHeaders(headersOf(id)); err != nil {
				return err
			}
			if err := f.WriteData(id, id == 3, bytes.Repeat([]byte{byte(id)}, 1000)); err != nil {
				return err
			}
		}
		return f.WriteRSTStream(5, http2.ErrCodeCancel)
	})
	want := 3 * (callCost + len(request(check)) + frameCost + 4*1000)
	for size := 1; size <= len(sent); size++ {
		a := newAccount()
		c := newMeteredConn(nil, a, nil)
		for rest := sent; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			c.received(rest[:min(size, len(rest))])
		}
		if got := a.cost.Load(); got != int64(want) {
			t.Fatalf("in pieces of %d bytes the calls cost %d, want %d", size, got, want)
		}
	}
}

// Whatever the size of a frame, its cost is at least what gRPC's buffer has for it.
func TestFramesCostTheirBuffers(t *testing.T) {
	pool := mem.DefaultBufferPool()
	for n := 1; n <= fullFrame; n++ {
		c := newMeteredConn(nil, newAccount(), nil)
		c.charge(1, 1)
		c.received([]byte(http2.ClientPreface))
		c.received([]byte{0, byte(n >> 8), byte(n), byte(http2.FrameData), 0, 0, 0, 0, 1})
		buffer := n
		if !mem.IsBelowBufferPoolingThreshold(n) {
			data := pool.Get(n)
			buffer = cap(*data)
			pool.Put(data)
		}
		if cost := c.account.cost.Load(); cost < int64(buffer) {
			t.Fatalf("a frame of %d bytes costs %d, and its buffer has %d", n, cost, buffer)
		}
	}
}

func TestAccounts(t *testing.T) {
	var a accounts
	pleg, prober := Peer{UID: 1, Roles: []role.Role{role.PLEG}}, Peer{UID: 2, Roles: []role.Role{role.Prober}}
	root, inPod, stranger := Peer{Roles: role.All()}, Peer{}, Peer{UID: 1000}
	of := func(p Peer) *account { return a.of(userOf(p)) }
	first := of(pleg)
	if of(pleg) != first || of(prober) == first {
		t.Error("a user with a role has not one account of its own")
	}
	if of(inPod) != of(stranger) || of(inPod) == of(root) {
		t.Error("those without a role have not one account together")
	}
}
