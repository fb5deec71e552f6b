package server

import (
	"net/http"
	"sync"
)

// batchSize is how much is gathered before it goes out anyway.
const batchSize = 16 << 10

// buffers are those of all batches: a log that is silent holds none.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// batch passes lines on to a reader of a log: those that are read together in one delivery, since each costs a record
// of TLS and a system call, here and in the apiserver. A delivery that is not taken ends the request.
type batch struct {
	s          *Server
	w          http.ResponseWriter
	controller *http.ResponseController
	held       *[]byte // what is to be delivered; nil if nothing
	delivered  bool    // something has been since all was written
	err        error
}

func (s *Server) newBatch(w http.ResponseWriter) *batch {
	return &batch{s: s, w: w, controller: http.NewResponseController(w)}
}

// Write implements io.Writer.
func (b *batch) Write(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.held == nil {
		b.held = buffers.Get().(*[]byte)
	}
	*b.held = append(*b.held, p...)
	if len(*b.held) >= batchSize {
		b.deliver()
	}
	if b.err != nil {
		return 0, b.err
	}
	return len(p), nil
}

// CaughtUp implements containerlogs.Follower.
func (b *batch) CaughtUp() (anything bool, err error) {
	anything = b.delivered || b.held != nil
	b.deliver()
	b.delivered = false
	return anything, b.err
}

// begin sends the header, also when the log is silent for hours.
func (b *batch) begin() error {
	b.flush(nil)
	return b.err
}

// deliver delivers what is held, unless the reader has gone.
func (b *batch) deliver() {
	if b.held == nil {
		return
	}
	if b.err == nil {
		b.flush(*b.held)
		b.delivered = true
	}
	if cap(*b.held) <= 2*batchSize { // one long line must not be kept for ever
		*b.held = (*b.held)[:0]
		buffers.Put(b.held)
	}
	b.held = nil
}

func (b *batch) flush(p []byte) {
	if !setWriteDeadline(b.w, b.s.options.LongWrite) {
		b.err = errNoFlush
		return
	}
	if _, b.err = b.w.Write(p); b.err == nil {
		b.err = b.controller.Flush()
	}
}
