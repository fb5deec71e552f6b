package childpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
)

var (
	// ErrHangs is in the error of a call that was not answered in time.
	ErrHangs = errors.New("the file system may hang")
	// ErrFull says that there are as many children as there may be.
	ErrFull = errors.New("all processes for calls on volumes are in use")
)

// ask asks the child, and returns its answer unless that takes too long.
func (p *Pool) ask(ctx context.Context, l *lease, w *Child) (json.RawMessage, error) {
	answers := make(chan reply, 1)
	go func() { answers <- w.ask(p.watch(ctx, l), &l.Call) }() // ends at the latest when the socket is closed
	patience := time.NewTimer(l.Patience)
	defer patience.Stop()
	select {
	case r := <-answers:
		switch {
		case r.lost != nil:
			return nil, p.abandon(l, w, l.fail("the process that did it has ended", r.lost))
		case r.Left:
			return r.Result, p.abandon(l, w, r.err())
		}
		p.finish(l, w)
		return r.Result, r.err()
	case <-patience.C:
		p.hang(l)
		return nil, p.abandon(l, w, l.fail(fmt.Sprintf("has not answered for %s", l.Patience), ErrHangs))
	case <-ctx.Done():
	}
	_ = w.Conn.CloseWrite() // cancels the operation; if that fails the child has ended
	timer := time.NewTimer(leave)
	defer timer.Stop()
	var err error
	select {
	case r := <-answers:
		err = r.err()
	case <-timer.C:
	}
	return nil, errors.Join(err, p.abandon(l, w, l.fail("given up", context.Cause(ctx))))
}

// reply is what came from a child, or why nothing came.
type reply struct {
	answer
	lost error
}

func (w *Child) ask(ctx context.Context, c *Call) (r reply) {
	within := c.Patience
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline))
	}
	// The parent gives up first, and says why.
	q := request{Call: *c, Within: within + leave}
	r.lost = writeMessage(w.Conn, &q)
	for r.lost == nil {
		r.answer = answer{}
		r.lost = readMessage(w.in, &r.answer)
		if r.Progress == nil {
			break
		}
		Report(ctx, *r.Progress)
	}
	return r
}

// watch notes that the call goes on when the child reports how much it has done.
func (p *Pool) watch(ctx context.Context, l *lease) context.Context {
	return WithProgress(ctx, func(done int64) {
		p.mu.Lock()
		l.moved = time.Now()
		p.mu.Unlock()
		Report(ctx, done)
	})
}

// abandon kills the child. If that does not end it, the lease hangs until it does. It returns the cause.
func (p *Pool) abandon(l *lease, w *Child, cause error) error {
	w.end()
	timer := time.NewTimer(leave)
	defer timer.Stop()
	select {
	case <-w.Ended:
		p.exit(l)
		return cause
	case <-timer.C:
	}
	p.hang(l)
	log := p.log.With(logkey.Path, l.Path, "operation", l.Operation, logkey.PID, w.PID)
	log.Error("call on a volume hangs in the kernel: its process is left behind")
	// The goroutine ends with the child, when the kernel lets go of it.
	go func() {
		<-w.Ended
		p.exit(l)
		log.Info("call on a volume that hung has ended")
	}()
	return cause
}

// hang has calls on the path fail at once, until the child has ended.
func (p *Pool) hang(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.hangs = true
	if l.held != nil {
		l.held.Hang()
	}
}

// finish leaves the child to the next call.
func (p *Pool) finish(l *lease, w *Child) {
	if l.session {
		p.rest(l)
		return
	}
	p.keep(w)
	p.exit(l)
}
