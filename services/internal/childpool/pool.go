package childpool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/childprocess"
	"github.com/microlet/microlet/services/internal/keylock"
	"github.com/microlet/microlet/services/internal/shares"
)

// leave is how long a call may go on after its caller has given up, before its child is killed. It is also how long
// the pool waits for the end of that child. A call on a local file system ends by then, and the next caller does not
// meet it.
const leave = time.Second

// Bounds of a Pool. Calls of Operations that are Long have at most half of Children, Lane and Foreign.
type Bounds struct {
	// Children bounds the children, those that cannot end included. Each takes some megabytes.
	Children int
	// Quick is how many calls run at once, without those that take longer than Slow.
	Quick int
	Slow  time.Duration
	// Lane is how many calls on one file system run. It needs to be more than one where a path may lead over a link to
	// what hangs: such a call has a place on the file system that has the link.
	Lane int
	// Foreign is how many calls on all file systems run that have none of the Own paths: pods that
	// name many servers that hang take no child from pods that name none.
	Foreign int
	// Idle is how long a child waits for the next call.
	Idle time.Duration
}

// defaultBounds are those of a service that does all kinds of calls.
var defaultBounds = Bounds{Children: 32, Quick: 8, Slow: time.Second, Lane: 8, Foreign: 16, Idle: 15 * time.Second}

// Options of a Pool.
type Options struct {
	// Program is what a child runs.
	Program *childprocess.Program
	// Bounds are, if there are none: 32 children, 8 quick calls within a second, 8 calls on one file system, 16 on those
	// that are not the node's own, 15 s of idleness.
	Bounds Bounds
	// Own are paths on the node's own file systems, for which children are kept free. Without any, none is.
	Own []string
	// Earlier counts the children of earlier processes that hang: a service that is restarted again and again must not
	// fill the node with them.
	Earlier bool
	// Log gets what goes wrong. Default: slog's.
	Log *slog.Logger

	// Start starts a child. Default: the Program's.
	Start func() (*Child, error)
	// Mounts lists what is mounted. Default: the kernel's list.
	Mounts func() (MountPoints, error)

	countLeft func() int
}

// Pool runs operations in children, which it starts as they are needed. It is safe for concurrent use.
type Pool struct {
	bounds Bounds
	own    []string
	log    *slog.Logger
	start  func() (*Child, error)

	paths keylock.Locks[string]

	mu     sync.Mutex
	closed bool
	// waiting are calls that have their paths and no place, and leases those that have one, and the sessions.
	waiting, leases map[*lease]bool
	entered         uint64
	idle            []*Child
	// left counts the children of earlier processes that hang.
	left      int
	countLeft func() int
	mounts    mounts
}

// New returns a pool that has started no child yet.
func New(o Options) *Pool {
	if o.Bounds == (Bounds{}) {
		o.Bounds = defaultBounds
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Start == nil {
		o.Start = func() (*Child, error) { return startProgram(o.Program) }
	}
	if o.countLeft == nil && o.Earlier {
		o.countLeft = func() int { return leftBehind("/proc", o.Program.ShortName()) }
	}
	if o.Mounts == nil {
		o.Mounts = kernelMounts
	}
	p := &Pool{bounds: o.Bounds, log: o.Log, start: o.Start, own: o.Own, countLeft: o.countLeft,
		mounts: mounts{list: o.Mounts, log: o.Log}, waiting: map[*lease]bool{}, leases: map[*lease]bool{}}
	if p.countLeft != nil {
		p.left = p.countLeft()
	}
	if p.left > 0 {
		p.log.Warn("calls on volumes of an earlier process hang in the kernel", "processes", p.left)
	}
	return p
}

// Run runs the operation in a child. See Runner.
func (p *Pool) Run(ctx context.Context, c Call) (json.RawMessage, error) {
	held, err := p.paths.Lock(ctx, c.Path)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", c.Operation, c.Path, err)
	}
	l := &lease{Call: c, owner: shares.Owner(ctx), held: held, admitted: make(chan struct{})}
	if err := p.await(ctx, l); err != nil {
		p.exit(l)
		return nil, err
	}
	defer time.AfterFunc(p.bounds.Slow, p.wake).Stop() // it is none of the quick ones any more
	if c.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Deadline)
		defer cancel()
	}
	w, err := p.child()
	if err != nil {
		p.exit(l)
		return nil, err
	}
	return p.ask(ctx, l, w)
}

// Close ends the idle children. Calls that come later get children for themselves.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.idle {
		w.rest.Stop()
		_ = w.Conn.Close() // which ends the child
	}
	p.idle = nil
}

// Serve closes the pool when the context ends.
func (p *Pool) Serve(ctx context.Context) error {
	<-ctx.Done()
	p.Close()
	return nil
}

// Children returns how many children there are: those of calls and sessions, those that are idle, and those that were
// killed without an end, because the kernel has not let go of them.
func (p *Pool) Children() (busy, idle, hung int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.leases {
		if l.hangs {
			hung++
		}
	}
	return len(p.leases) - hung, len(p.idle), hung
}

// wake gives places to calls that wait.
func (p *Pool) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.admit()
}

// exit takes a call or a session from the pool, and leaves its path to the next call.
func (p *Pool) exit(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, l)
	delete(p.leases, l)
	if l.held != nil {
		l.held.Unlock()
	}
	p.admit()
}
