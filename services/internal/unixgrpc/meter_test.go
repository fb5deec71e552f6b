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

	"github.com/microlet/microlet/proto/role"
)

// metered returns a metered connection that is read from, its client's end, and why the meter closed it.
func metered(t *testing.T) (client net.Conn, c *meteredConn, closed chan error) {
	t.Helper()
	client, server := net.Pipe()
	closed = make(chan error, 1)
	c = newMeteredConn(server, newAccount(userBudget), func(why error) { closed <- why })
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

func headersOf(id uint32, ended bool) http2.HeadersFrameParam {
	return http2.HeadersFrameParam{StreamID: id, BlockFragment: request(check), EndHeaders: ended}
}

func TestTheDeadlineOfARequest(t *testing.T) {
	whole := func(f *http2.Framer) error {
		if err := f.WriteHeaders(headersOf(1, true)); err != nil {
			return err
		}
		return f.WriteData(1, true, make([]byte, 5))
	}
	for _, c := range []struct {
		name string
		send func(f *http2.Framer) error
		cut  int // bytes that are not sent
		want error
	}{
		{name: "nothing", send: func(*http2.Framer) error { return nil }},
		{name: "a request", send: whole},
		{name: "half a preface", send: func(*http2.Framer) error { return nil }, cut: 10, want: errTooSlow},
		{name: "half a frame's header", send: whole, cut: 10, want: errTooSlow},
		{name: "half a frame", send: whole, cut: 3, want: errTooSlow},
		{name: "headers without an end", want: errTooSlow,
			send: func(f *http2.Framer) error { return f.WriteHeaders(headersOf(1, false)) }},
		{name: "no message", want: errTooSlow,
			send: func(f *http2.Framer) error { return f.WriteHeaders(headersOf(1, true)) }},
		{name: "a call that its caller gave up", send: func(f *http2.Framer) error {
			if err := f.WriteHeaders(headersOf(1, true)); err != nil {
				return err
			}
			return f.WriteRSTStream(1, http2.ErrCodeCancel)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _, closed := metered(t)
				sent := bytesOf(t, c.send)
				if _, err := client.Write(sent[:len(sent)-c.cut]); err != nil {
					t.Fatal(err)
				}
				time.Sleep(requestTimeout - time.Second)
				synctest.Wait()
				select {
				case why := <-closed:
					t.Fatalf("closed before the deadline: %v", why)
				default:
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				var got error
				select {
				case got = <-closed:
				default:
				}
				if !errors.Is(got, c.want) {
					t.Errorf("closed: %v, want %v", got, c.want)
				}
			})
		})
	}
}

// A caller that always has a request on its way is none that is slow.
func TestRequestsOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, c, closed := metered(t)
		if _, err := client.Write([]byte(http2.ClientPreface)); err != nil {
			t.Fatal(err)
		}
		f := http2.NewFramer(client, nil)
		for i := range uint32(100) {
			if err := f.WriteHeaders(headersOf(2*i+1, true)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if i > 0 {
				if err := f.WriteData(2*i-1, true, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		select {
		case why := <-closed:
			t.Errorf("closed: %v", why)
		default:
		}
		if c.account.cost < 100*callCost {
			t.Errorf("100 calls that have no answer cost %d bytes", c.account.cost)
		}
	})
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
			if err := f.WriteHeaders(headersOf(id, true)); err != nil {
				return err
			}
			if err := f.WriteData(id, id == 3, bytes.Repeat([]byte{byte(id)}, 1000)); err != nil {
				return err
			}
		}
		return f.WriteRSTStream(5, http2.ErrCodeCancel)
	})
	want := 3 * (callCost + len(request(check)) + frameCost + 1000)
	for size := 1; size <= len(sent); size++ {
		a := newAccount(userBudget)
		c := newMeteredConn(nil, a, nil)
		for rest := sent; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if room, _ := c.received(rest[:min(size, len(rest))]); !room {
				t.Fatal("there is no room")
			}
		}
		if c.deadline != nil {
			c.deadline.Stop()
		}
		if a.cost != want {
			t.Fatalf("in pieces of %d bytes the calls cost %d, want %d", size, a.cost, want)
		}
	}
}

func TestAccounts(t *testing.T) {
	var a accounts
	pleg, prober := Peer{UID: 1, Roles: []role.Role{role.PLEG}}, Peer{UID: 2, Roles: []role.Role{role.Prober}}
	root, inPod, stranger := Peer{Roles: role.All()}, Peer{}, Peer{UID: 1000}
	first := a.of(pleg)
	if a.of(pleg) != first || a.of(prober) == first {
		t.Error("a user with a role has not one account of its own")
	}
	if a.of(inPod) != a.of(stranger) || a.of(inPod) == a.of(root) {
		t.Error("those without a role have not one account together")
	}
	if a.of(root).budget != rootsBudget || a.of(stranger).budget != userBudget {
		t.Errorf("the budgets are %d and %d", a.of(root).budget, a.of(stranger).budget)
	}
}
