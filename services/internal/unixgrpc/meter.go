package unixgrpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"
)

// No setting of gRPC bounds what a caller sends: it keeps each frame of data by itself until a message is complete, and
// opens the window of a connection again before the data is read. So a server meters its connections itself. It charges
// a call, from its headers until its answer ends, with what the caller has sent for it, whether it is a message yet or
// not. See docs/adr/0019-a-grpc-server-meters-its-callers.md.
const (
	// budget is what one user's calls to one server may cost. A caller who goes beyond it loses the connection.
	budget = 32 << 20

	// callCost is about what a call takes beside its data: headers, a goroutine, gRPC's own records.
	callCost = 8 << 10
	// frameCost is about what a frame of data takes beside the data.
	frameCost = 256
	// fullFrame is the data that a frame has at most. gRPC's buffers have up to this size, and up to four times that of
	// the data.
	fullFrame = 16 << 10
	// settingsCost is what a frame of settings takes at most until gRPC answers it. It answers none while the caller does
	// not read.
	settingsCost = 32 << 10

	// workRate is how much of a user's frames a server reads in a second, and frameWork about what it computes for a
	// frame, as if that were data. It makes 4,000 calls a second, which is several times what a node with many pods has.
	// The server reads later what comes faster: else one user could have it compute for nothing else.
	workRate  = 16 << 20
	workBurst = 32 << 20
	frameWork = 2 << 10
)

// errBudget is why a connection is closed.
var errBudget = errors.New("the calls of its user take too much memory")

// account is what one user's calls to one server cost.
type account struct {
	cost atomic.Int64
	work *rate.Limiter
}

func newAccount() *account { return &account{work: rate.NewLimiter(workRate, workBurst)} }

// accounts are those of a server's users.
type accounts struct {
	mu     sync.Mutex
	byUser map[int]*account
}

func (a *accounts) of(user int) *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byUser == nil {
		a.byUser = map[int]*account{}
	}
	if a.byUser[user] == nil {
		a.byUser[user] = newAccount()
	}
	return a.byUser[user]
}

// meteredConn is a server's connection that charges what its caller sends, or a client's that charges settings alone.
// Its Read and Write may be called by one goroutine each.
type meteredConn struct {
	net.Conn
	account *account
	closed  func(why error) // learns that the meter has closed the connection
	client  bool

	mu      sync.Mutex
	in, out frames
	// costs are those of the calls whose answers have not ended, and, as the stream 0, of unanswered settings. It is nil
	// when the connection is closed.
	costs map[uint32]int
}

func newMeteredConn(conn net.Conn, a *account, closed func(error)) *meteredConn {
	return &meteredConn{
		Conn: conn, account: a, closed: closed, costs: map[uint32]int{}, in: frames{skip: len(http2.ClientPreface)},
	}
}

// newMeteredClient returns a client's connection. A client reads as fast as its server sends.
func newMeteredClient(conn net.Conn) *meteredConn {
	return &meteredConn{
		Conn: conn, account: &account{work: rate.NewLimiter(rate.Inf, 0)}, closed: func(error) {}, client: true,
		costs: map[uint32]int{}, out: frames{skip: len(http2.ClientPreface)},
	}
}

// Read reads what the caller sends, and charges it.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	work := c.received(p[:n])
	if c.account.cost.Load() > budget {
		c.closed(errBudget)
		_ = c.Close() // the caller learns of it by the end alone
		return 0, errBudget
	}
	_ = c.account.work.WaitN(context.Background(), min(work, workBurst)) // it fails for more than the burst alone
	return n, err
}

// Write writes what the server answers, which ends calls.
func (c *meteredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.scan(p[:n], func(f http2.FrameHeader) {
		switch {
		case f.Type == http2.FrameRSTStream || endsStream(f):
			c.end(f.StreamID)
		case f.Type == http2.FrameSettings && f.Flags.Has(http2.FlagSettingsAck):
			c.charge(0, -settingsCost)
		}
	})
	return n, err
}

// Close closes the connection and gives back what its calls have cost.
func (c *meteredConn) Close() error {
	c.mu.Lock()
	for id := range c.costs {
		c.end(id)
	}
	c.costs = nil
	c.mu.Unlock()
	return c.Conn.Close()
}

// received charges what came, and reports how much work it is.
func (c *meteredConn) received(p []byte) (work int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	work = len(p)
	c.in.scan(p, func(f http2.FrameHeader) {
		work += frameWork
		n := int(f.Length)
		switch {
		case f.Type == http2.FrameSettings:
			if !f.Flags.Has(http2.FlagSettingsAck) {
				c.charge(0, settingsCost)
			}
		case c.client: // an answer
		case f.Type == http2.FrameHeaders:
			c.charge(f.StreamID, callCost+n)
		case f.Type == http2.FrameData || f.Type == http2.FrameContinuation:
			if c.costs[f.StreamID] > 0 { // what comes for others gRPC drops
				c.charge(f.StreamID, frameCost+max(n, min(4*n, fullFrame)))
			}
		case f.Type == http2.FrameRSTStream:
			c.end(f.StreamID)
		}
	})
	return work
}

// charge adds to what a call costs, unless the connection is closed.
func (c *meteredConn) charge(id uint32, cost int) {
	if c.costs != nil {
		c.costs[id] += cost
		c.account.cost.Add(int64(cost))
	}
}

// end gives back what a call has cost.
func (c *meteredConn) end(id uint32) {
	c.account.cost.Add(-int64(c.costs[id]))
	delete(c.costs, id)
}

// endsStream reports whether a frame is the last that its sender sends of a call.
func endsStream(f http2.FrameHeader) bool {
	return (f.Type == http2.FrameHeaders || f.Type == http2.FrameData) && f.Flags.Has(http2.FlagDataEndStream)
}

// frames finds the frames in a stream of bytes.
type frames struct {
	skip int // bytes until the next frame begins
	head [9]byte
	have int // bytes of head
}

// scan goes on with these bytes and calls found with each frame's header, before the frame is complete.
func (s *frames) scan(p []byte, found func(http2.FrameHeader)) {
	for len(p) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(p))
			p, s.skip = p[n:], s.skip-n
			continue
		}
		n := copy(s.head[s.have:], p)
		p, s.have = p[n:], s.have+n
		if s.have < len(s.head) {
			return
		}
		h := s.head
		s.have, s.skip = 0, int(h[0])<<16|int(h[1])<<8|int(h[2])
		found(http2.FrameHeader{
			Length: uint32(s.skip), Type: http2.FrameType(h[3]), Flags: http2.Flags(h[4]),
			StreamID: (uint32(h[5])<<24 | uint32(h[6])<<16 | uint32(h[7])<<8 | uint32(h[8])) &^ (1 << 31),
		})
	}
}
