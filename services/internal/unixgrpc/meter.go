package unixgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"github.com/microlet/microlet/proto/role"
)

// gRPC bounds what a caller sends by the product of its connections, their calls, and the size of a message: its
// windows bound each call alone, as the one of the connection is opened again before the data is read. So a server
// meters its connections itself. It charges a call, from its headers until its answer ends, with what the caller has
// sent for it, whether it is a message yet or not.
const (
	// userBudget is what one user's calls to one server may cost, and rootsBudget what those of root's tools may, which
	// send whole pods. From half of it on, the server refuses further calls. A caller who goes beyond it all the same
	// loses the connection.
	userBudget  = 32 << 20
	rootsBudget = 64 << 20

	// callCost is about what a call takes beside its data: headers, a goroutine, gRPC's own records.
	callCost = 8 << 10
	// frameCost is about what a frame of data takes beside the data.
	frameCost = 256

	// workRate is how much of a user's frames a server reads in a second, and frameWork about what it computes for a frame,
	// as if that were data. It makes 4,000 calls a second, which is several times what a node with many pods has. The
	// server reads later what comes faster: else one user could have it compute for nothing else.
	workRate  = 16 << 20
	workBurst = 32 << 20
	frameWork = 2 << 10

	// requestTimeout is how long a caller may take from the first byte of a request to the last.
	requestTimeout = callTimeout
)

// Why a connection is closed.
var (
	errBudget  = errors.New("the calls of its user take too much memory")
	errTooSlow = fmt.Errorf("a request is not complete after %s", requestTimeout)
)

// account is what one user's calls to one server cost.
type account struct {
	budget int
	work   *rate.Limiter

	mu   sync.Mutex
	cost int
}

func newAccount(budget int) *account {
	return &account{budget: budget, work: rate.NewLimiter(workRate, workBurst)}
}

// add charges a call, or gives back, and reports whether the budget has room for it.
func (a *account) add(cost int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cost += cost
	return a.cost <= a.budget
}

// strained reports whether half of the budget is spent.
func (a *account) strained() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cost > a.budget/2
}

// accounts are those of a server's users. All peers without a role have one.
type accounts struct {
	mu     sync.Mutex
	byUser map[int]*account
}

// of returns the account of a peer.
func (a *accounts) of(p Peer) *account {
	user, budget := p.UID, userBudget
	switch {
	case len(p.Roles) == 0:
		user = strangers
	case p.Is(role.Up):
		budget = rootsBudget
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byUser == nil {
		a.byUser = map[int]*account{}
	}
	if a.byUser[user] == nil {
		a.byUser[user] = newAccount(budget)
	}
	return a.byUser[user]
}

// call is a call without a complete answer.
type call struct {
	cost  int
	began time.Time
	whole bool // the caller has nothing more to send
}

// meteredConn is a server's connection that charges what its caller sends. Its Read and Write may be called by one
// goroutine each.
type meteredConn struct {
	net.Conn
	account *account
	closed  func(why error) // learns that the meter has closed the connection

	mu       sync.Mutex
	in, out  frames
	calls    map[uint32]*call
	headers  time.Time   // when unfinished headers began; zero if there are none
	deadline *time.Timer // nil while nothing is waited for
	ended    bool
}

func newMeteredConn(conn net.Conn, a *account, closed func(error)) *meteredConn {
	return &meteredConn{
		Conn: conn, account: a, closed: closed, calls: map[uint32]*call{}, in: frames{skip: len(http2.ClientPreface)},
	}
}

// Read reads what the caller sends, and charges it.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	room, work := c.received(p[:n])
	if !room {
		c.cut(errBudget)
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
		if f.Type == http2.FrameRSTStream || endsStream(f) {
			c.end(f.StreamID)
		}
	})
	return n, err
}

// Close closes the connection and gives back what its calls have cost.
func (c *meteredConn) Close() error {
	c.mu.Lock()
	c.ended = true
	for id := range c.calls {
		c.end(id)
	}
	if c.deadline != nil {
		c.deadline.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

func (c *meteredConn) cut(why error) {
	c.closed(why)
	_ = c.Close() // the caller learns of it by the end alone
}

// received charges what came, and reports whether the budget has room for it, and how much work it is.
func (c *meteredConn) received(p []byte) (room bool, work int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room, work = true, len(p)
	if c.ended {
		return room, work
	}
	now := time.Now()
	charge := func(id uint32, cost int) {
		if call := c.calls[id]; call != nil { // what comes for others gRPC drops
			call.cost += cost
			room = c.account.add(cost) && room
		}
	}
	c.in.scan(p, func(f http2.FrameHeader) {
		work += frameWork
		switch f.Type {
		case http2.FrameHeaders:
			if c.calls[f.StreamID] == nil {
				c.calls[f.StreamID] = &call{began: now}
			}
			charge(f.StreamID, callCost+int(f.Length))
			if c.headers = now; f.Flags.Has(http2.FlagHeadersEndHeaders) {
				c.headers = time.Time{}
			}
		case http2.FrameContinuation:
			charge(f.StreamID, int(f.Length))
			if f.Flags.Has(http2.FlagContinuationEndHeaders) {
				c.headers = time.Time{}
			}
		case http2.FrameData:
			charge(f.StreamID, frameCost+bufferSize(int(f.Length)))
		case http2.FrameRSTStream:
			c.end(f.StreamID)
		}
		if call := c.calls[f.StreamID]; call != nil && endsStream(f) {
			call.whole = true
		}
	})
	c.in.since(now)
	if c.deadline == nil {
		c.await(now)
	}
	return room, work
}

// end gives back what a call has cost.
func (c *meteredConn) end(id uint32) {
	if call := c.calls[id]; call != nil {
		c.account.add(-call.cost)
		delete(c.calls, id)
	}
}

// await sets the deadline for what has begun and is not complete. It reports whether it has passed.
func (c *meteredConn) await(now time.Time) (passed bool) {
	var oldest time.Time
	consider := func(t time.Time) {
		if !t.IsZero() && (oldest.IsZero() || t.Before(oldest)) {
			oldest = t
		}
	}
	consider(c.headers)
	consider(c.in.began)
	for _, call := range c.calls {
		if !call.whole {
			consider(call.began)
		}
	}
	c.deadline = nil
	if oldest.IsZero() {
		return false
	}
	left := requestTimeout - now.Sub(oldest)
	if left <= 0 {
		return true
	}
	// One timer for all of a connection: most calls are complete long before it fires.
	c.deadline = time.AfterFunc(left, func() {
		c.mu.Lock()
		passed := !c.ended && c.await(time.Now())
		c.mu.Unlock()
		if passed {
			c.cut(errTooSlow)
		}
	})
	return false
}

// endsStream reports whether a frame is the last that its sender sends of a call.
func endsStream(f http2.FrameHeader) bool {
	return (f.Type == http2.FrameHeaders || f.Type == http2.FrameData) && f.Flags.Has(http2.FlagDataEndStream)
}

// bufferSize is how large the buffer is that gRPC takes for data of this size, from its pools.
func bufferSize(n int) int {
	switch {
	case n <= 1<<10:
		return n
	case n <= 4<<10:
		return 4 << 10
	default:
		return max(n, 16<<10)
	}
}

// frames finds the frames in a stream of bytes.
type frames struct {
	skip  int // bytes until the next frame begins
	head  [9]byte
	have  int       // bytes of head
	began time.Time // when the frame began that is not complete; zero if there is none
}

// scan goes on with these bytes and calls found with each frame's header, before the frame is complete.
func (s *frames) scan(p []byte, found func(http2.FrameHeader)) {
	for len(p) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(p))
			p, s.skip = p[n:], s.skip-n
			if s.skip == 0 {
				s.began = time.Time{}
			}
			continue
		}
		n := copy(s.head[s.have:], p)
		p, s.have = p[n:], s.have+n
		if s.have < len(s.head) {
			return
		}
		h := s.head
		s.have, s.skip = 0, int(h[0])<<16|int(h[1])<<8|int(h[2])
		s.began = time.Time{}
		found(http2.FrameHeader{
			Length: uint32(s.skip), Type: http2.FrameType(h[3]), Flags: http2.Flags(h[4]),
			StreamID: (uint32(h[5])<<24 | uint32(h[6])<<16 | uint32(h[7])<<8 | uint32(h[8])) &^ (1 << 31),
		})
	}
}

// since notes that a frame which is not complete has been there since now, unless it was there before.
func (s *frames) since(now time.Time) {
	if (s.skip > 0 || s.have > 0) && s.began.IsZero() {
		s.began = now
	}
}
