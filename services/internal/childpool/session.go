package childpool

import (
	"context"
	"encoding/json"
	"time"
)

// Session is a child for several calls, one at a time, between which it keeps what it likes. A call that fails for
// another reason than the operation itself ends it. It is a Runner.
type Session struct {
	pool  *Pool
	lease *lease
	child *Child
}

// Session returns a session. It waits for nothing: if there are as many children as there may be, it fails with
// ErrFull.
func (p *Pool) Session() (*Session, error) {
	l := &lease{session: true}
	p.mu.Lock()
	if p.count().all.full(false) != nil {
		p.mu.Unlock()
		return nil, ErrFull
	}
	p.leases[l] = true
	p.mu.Unlock()
	w, err := p.child()
	if err != nil {
		p.exit(l)
		return nil, err
	}
	return &Session{pool: p, lease: l, child: w}, nil
}

// Take has the session's next call, on this path, count from now on.
func (s *Session) Take(path string) { s.begin(Call{Path: path}) }

// Run runs the operation at once, whatever else runs. See Pool.Room.
func (s *Session) Run(ctx context.Context, c Call) (json.RawMessage, error) {
	s.begin(c)
	return s.pool.ask(ctx, s.lease, s.child)
}

func (s *Session) begin(c Call) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.lease.Call, s.lease.looked = c, time.Time{}
	s.lease.place(s.pool.mounts.points())
	s.lease.begin()
}

// Lane returns the file system that the last call was on.
func (s *Session) Lane() Lane {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.lease.place(s.pool.mounts.points())
	return s.lease.lane
}

// Keep leaves the child to others. No call is under way.
func (s *Session) Keep() {
	s.pool.keep(s.child)
	s.pool.exit(s.lease)
}

// End kills the child, and waits for nothing. It counts until it has ended.
func (s *Session) End() {
	s.child.end()
	go func() { // ends with the child
		<-s.child.Ended
		s.pool.exit(s.lease)
	}()
}

// Ended is closed when the child has ended.
func (s *Session) Ended() <-chan struct{} { return s.child.Ended }

// rest says that no call is under way.
func (p *Pool) rest(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.runs = false
	p.admit()
}
