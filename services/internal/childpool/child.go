package childpool

import (
	"io"
	"slices"
	"time"

	"github.com/microlet/microlet/services/internal/childprocess"
)

// child is a child as its parent sees it.
type child struct {
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

func startProgram(program *childprocess.Program) (*child, error) {
	c, err := program.Start()
	if err != nil {
		return nil, err
	}
	return &child{conn: c.Conn, kill: c.Kill, ended: c.Done(), pid: c.PID()}, nil
}

// end kills the child, and waits for nothing.
func (w *child) end() {
	w.kill()
	_ = w.conn.Close() // nothing is to be lost on it any more
}

// child returns an idle child or starts one, for a lease that counts already.
func (p *Pool) child() (*child, error) {
	p.mu.Lock()
	if last := len(p.idle) - 1; last >= 0 {
		w := p.idle[last]
		p.idle = p.idle[:last]
		p.mu.Unlock()
		w.rest.Stop()
		return w, nil
	}
	p.mu.Unlock()
	w, err := p.start()
	if err != nil {
		return nil, err
	}
	w.rest = time.AfterFunc(p.bounds.Idle, func() { p.dismiss(w) })
	w.rest.Stop()
	// The goroutine ends with the child. If the child hangs, that is when the kernel lets go of it.
	go func() {
		<-w.ended
		p.dismiss(w) // it may have been killed while it was idle
	}()
	return w, nil
}

// keep makes a child that has answered idle.
func (p *Pool) keep(w *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= p.bounds.Quick {
		_ = w.conn.Close() // which ends the child
		return
	}
	p.idle = append(p.idle, w)
	w.rest.Reset(p.bounds.Idle)
}

// dismiss ends a child that is idle.
func (p *Pool) dismiss(w *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idle, w); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
		_ = w.conn.Close()
	}
}
