package mounter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/childprocess"
	"github.com/microlet/microlet/services/internal/keylock"
	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// parallel is how many calls run at once, without those that take long.
	parallel = 8
	// slow is how long a call keeps its place among them.
	slow = time.Second
	// maxChildren bounds the children, those that cannot end included. Each takes some megabytes.
	maxChildren = 32
	// perFileSystem is how many of them calls on one file system may have. Calls that take long have at
	// most half of each bound.
	perFileSystem = 8
	// maxForeign is how many of them calls on all file systems that are not the node's own may have together. Pods that
	// name many servers that hang take no child from pods that name none.
	maxForeign = maxChildren - 2*perFileSystem
	// idleTime is how long a child waits for the next call.
	idleTime = 15 * time.Second
	// leave is how long a call may go on after its caller has given up, before its child is killed. It is also how long
	// the pool waits for the end of that child. A call on a local file system ends by then, and the next caller does not
	// meet it.
	leave = time.Second
)

// Options of a Pool.
type Options struct {
	// Program is what a child runs.
	Program *childprocess.Program
	// Own are paths on the node's own file systems, for which children are kept free. Without any, none is.
	Own []string
	// Metrics shows the numbers of children. Nil shows none.
	Metrics prometheus.Registerer
	// Log gets what goes wrong. Default: slog's.
	Log *slog.Logger

	start     func() (*worker, error) // Program's
	countLeft func() int
	mounts    func() ([]string, error)
}

// Pool runs operations in children, which it starts as they are needed. It is safe for concurrent use.
type Pool struct {
	log    *slog.Logger
	start  func() (*worker, error)
	places chan struct{}
	own    []string

	paths keylock.Locks[string]

	mu     sync.Mutex
	closed bool
	// entries are the calls that have their paths, and entered is how many there have been.
	entries map[*entry]bool
	entered uint64
	idle    []*worker
	// children counts those that have not ended, hung those of them that were killed.
	children, hung int
	// left counts those of earlier processes that hang: a service that is restarted again and again must not fill the
	// node with them.
	left      int
	countLeft func() int
	mounts    *mounts
	// changed is closed, and replaced, when a child is free or has ended, or a call is over.
	changed chan struct{}
}

// worker is a child.
type worker struct {
	conn  socket
	kill  func()
	ended <-chan struct{}
	pid   int
	// rest ends the child when it is idle for long.
	rest *time.Timer
}

type socket interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// NewPool returns a pool that has started no child yet.
func NewPool(o Options) (*Pool, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.start == nil {
		o.start = func() (*worker, error) {
			c, err := o.Program.Start()
			if err != nil {
				return nil, err
			}
			return &worker{conn: c.Conn, kill: c.Kill, ended: c.Done(), pid: c.PID()}, nil
		}
	}
	if o.countLeft == nil {
		o.countLeft = func() int { return leftBehind("/proc", o.Program.ShortName()) }
	}
	if o.mounts == nil {
		o.mounts = mountPoints
	}
	p := &Pool{log: o.Log, start: o.start, own: o.Own, countLeft: o.countLeft, mounts: &mounts{list: o.mounts},
		left: o.countLeft(), places: make(chan struct{}, parallel), entries: map[*entry]bool{}, changed: make(chan struct{})}
	if p.left > 0 {
		p.log.Warn("calls on volumes of an earlier process hang in the kernel", "processes", p.left)
	}
	return p, p.register(o.Metrics)
}

// Run runs the operation in a child. See Mounter.
func (p *Pool) Run(ctx context.Context, c Call) (json.RawMessage, error) {
	e, err := p.enter(ctx, &c)
	if err != nil {
		return nil, err
	}
	free, err := p.place(ctx, &c, e)
	if err != nil {
		p.exit(e)
		return nil, err
	}
	defer free()
	if c.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Deadline)
		defer cancel()
	}
	w, err := p.child(ctx, &c)
	if err != nil {
		p.exit(e)
		return nil, err
	}
	return p.ask(ctx, &c, e, w)
}

// Serve ends the idle children when the context ends. Calls that come later get children for themselves.
func (p *Pool) Serve(ctx context.Context) error {
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.idle {
		w.rest.Stop()
		_ = w.conn.Close() // which ends the child
	}
	p.idle = nil
	return nil
}

// place waits until the call may run beside the others, and beside those on its file system. The place is given back
// after a while even if the call goes on.
func (p *Pool) place(ctx context.Context, c *Call, e *entry) (free func(), err error) {
	if c.Long {
		waits := time.AfterFunc(DefaultPatience, func() {
			p.log.Info("call on a volume waits for others that take long", logkey.Path, c.Path, "operation", c.Operation)
		})
		defer waits.Stop()
	}
	began := time.Now()
	for {
		select {
		case p.places <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s %s: not tried: %d other calls are under way: %w", c.Operation, c.Path, parallel,
				context.Cause(ctx))
		}
		if p.share(e) {
			break
		}
		<-p.places
		if err := p.awaitShare(ctx, c, e, began); err != nil {
			return nil, err
		}
	}
	giveBack := sync.OnceFunc(func() { <-p.places })
	timer := time.AfterFunc(slow, giveBack)
	return func() {
		timer.Stop()
		giveBack()
	}, nil
}

// child returns an idle child or starts one.
func (p *Pool) child(ctx context.Context, c *Call) (*worker, error) {
	wait := time.NewTimer(c.Patience)
	defer wait.Stop()
	for {
		p.mu.Lock()
		if last := len(p.idle) - 1; last >= 0 {
			w := p.idle[last]
			p.idle = p.idle[:last]
			p.mu.Unlock()
			w.rest.Stop()
			return w, nil
		}
		if p.left > 0 && p.children+p.left >= maxChildren {
			p.left = max(0, p.countLeft()-p.hung) // those of this process look the same
		}
		if p.children+p.left < maxChildren {
			p.children++
			p.mu.Unlock()
			return p.startChild()
		}
		hung, changed := p.hung+p.left, p.changed
		p.mu.Unlock()
		if hung < maxChildren {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
			case <-wait.C:
			}
		}
		return nil, errors.Join(fmt.Errorf("%s %s: not tried: all %d processes for calls on volumes are in use, and %d "+
			"of them hang", c.Operation, c.Path, maxChildren, hung), context.Cause(ctx))
	}
}

// startChild starts a child, which is counted already.
func (p *Pool) startChild() (*worker, error) {
	w, err := p.start()
	if err != nil {
		p.count(-1, 0)
		return nil, err
	}
	w.rest = time.AfterFunc(idleTime, func() { p.dismiss(w) })
	w.rest.Stop()
	// The goroutine ends with the child. If the child hangs, that is when the kernel lets go of it.
	go func() {
		<-w.ended
		p.dismiss(w) // it may have been killed while it was idle
		p.count(-1, 0)
	}()
	return w, nil
}

// dismiss ends a child that is idle.
func (p *Pool) dismiss(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.idle {
		if p.idle[i] == w {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			_ = w.conn.Close()
			return
		}
	}
}

// count adds to the number of children, and to that of those that hang.
func (p *Pool) count(children, hung int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.children += children
	p.hung += hung
	p.wake()
}

// wake wakes the calls that wait for a child. The lock is held.
func (p *Pool) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// keep makes a child that has answered idle.
func (p *Pool) keep(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= parallel {
		_ = w.conn.Close() // which ends the child
		return
	}
	p.idle = append(p.idle, w)
	w.rest.Reset(idleTime)
	p.wake()
}

// ask asks the child, and returns its answer unless that takes too long.
func (p *Pool) ask(ctx context.Context, c *Call, e *entry, w *worker) (json.RawMessage, error) {
	answers := make(chan reply, 1)
	go func() { answers <- w.ask(p.watch(ctx, e), c) }() // ends at the latest when the socket is closed
	patience := time.NewTimer(c.Patience)
	defer patience.Stop()
	select {
	case r := <-answers:
		if r.lost == nil && r.Left {
			return r.Result, p.abandon(c, e, w, r.err())
		}
		if r.lost == nil {
			p.keep(w)
			p.exit(e)
			return r.Result, r.err()
		}
		return nil, p.abandon(c, e, w, fmt.Errorf("%s %s: the process that did it has ended: %w", c.Operation, c.Path,
			r.lost))
	case <-patience.C:
		e.held.Hang()
		return nil, p.abandon(c, e, w, fmt.Errorf("%s %s: has not answered for %s: the file system may hang",
			c.Operation, c.Path, c.Patience))
	case <-ctx.Done():
	}
	_ = w.conn.CloseWrite() // cancels the operation; if that fails the child has ended
	timer := time.NewTimer(leave)
	defer timer.Stop()
	var err error
	select {
	case r := <-answers:
		err = r.err()
	case <-timer.C:
	}
	return nil, errors.Join(err, p.abandon(c, e, w, fmt.Errorf("%s %s: given up: %w", c.Operation, c.Path,
		context.Cause(ctx))))
}

// reply is what came from a child, or why nothing came.
type reply struct {
	answer
	lost error
}

func (w *worker) ask(ctx context.Context, c *Call) (r reply) {
	within := c.Patience
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline))
	}
	// The parent gives up first, and says why.
	q := request{Call: *c, Within: within + leave}
	r.lost = writeMessage(w.conn, &q)
	for r.lost == nil {
		r.answer = answer{}
		r.lost = readMessage(w.conn, &r.answer)
		if r.Progress == nil {
			break
		}
		Report(ctx, *r.Progress)
	}
	return r
}

// abandon kills the child. If that does not end it, the path counts as one that hangs until it does. It returns the
// cause.
func (p *Pool) abandon(c *Call, e *entry, w *worker, cause error) error {
	w.kill()
	_ = w.conn.Close() // nothing is to be lost on it any more
	timer := time.NewTimer(leave)
	defer timer.Stop()
	select {
	case <-w.ended:
		p.exit(e)
		return cause
	case <-timer.C:
	}
	e.held.Hang()
	p.count(0, 1)
	p.log.Error("call on a volume hangs in the kernel: its process is left behind", logkey.Path, c.Path,
		"operation", c.Operation, logkey.PID, w.pid)
	// The goroutine ends with the child, when the kernel lets go of it.
	go func() {
		<-w.ended
		p.count(0, -1)
		p.exit(e)
		p.log.Info("call on a volume that hung has ended", logkey.Path, c.Path, "operation", c.Operation,
			logkey.PID, w.pid)
	}()
	return cause
}
