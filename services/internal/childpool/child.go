package childpool

import (
	"bufio"
	"io"
	"slices"
	"time"

	"github.com/microlet/microlet/services/internal/childprocess"
)

// Child is a child as its parent sees it.
type Child struct {
	// Conn is the parent's end of the socket pair. The child ends when it is closed.
	Conn Socket
	// Kill ends the child as soon as the kernel lets it end.
	Kill func()
	// Ended is closed when the child has ended.
	Ended <-chan struct{}
	PID   int

	in *bufio.Reader
	// rest ends the child when it is idle for long.
	rest *time.Timer
}

// Socket is an end of a socket pair.
type Socket interface {
	io.ReadWriteCloser
	CloseWrite() error
}

func startProgram(program *childprocess.Program) (*Child, error) {
	c, err := program.Start()
	if err != nil {
		return nil, err
	}
	return &Child{Conn: c.Conn, Kill: c.Kill, Ended: c.Done(), PID: c.PID()}, nil
}

// end kills the child, and waits for nothing.
func (w *Child) end() {
	w.Kill()
	_ = w.Conn.Close() // nothing is to be lost on it any more
}

// child returns an idle child or starts one, for a lease that counts already.
func (p *Pool) child() (*Child, error) {
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
	w.in = bufio.NewReader(w.Conn)
	w.rest = time.AfterFunc(p.bounds.Idle, func() { p.dismiss(w) })
	w.rest.Stop()
	// The goroutine ends with the child. If the child hangs, that is when the kernel lets go of it.
	go func() {
		<-w.Ended
		p.dismiss(w) // it may have been killed while it was idle
	}()
	return w, nil
}

// keep makes a child that has answered idle.
func (p *Pool) keep(w *Child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= p.bounds.Quick {
		_ = w.Conn.Close() // which ends the child
		return
	}
	p.idle = append(p.idle, w)
	w.rest.Reset(p.bounds.Idle)
}

// dismiss ends a child that is idle.
func (p *Pool) dismiss(w *Child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idle, w); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
		_ = w.Conn.Close()
	}
}
