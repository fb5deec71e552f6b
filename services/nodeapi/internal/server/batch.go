package server

import (
	"net/http"
	"sync"
	"time"
)

const (
	// batchPause is the least time between two deliveries to a reader of a log. A line after a pause goes out
	// at once; of a log that is written faster nobody reads more than ten states a second, and each
	// delivery costs a record of TLS and a system call, here and in the apiserver.
	batchPause = 100 * time.Millisecond
	// batchSize is how much is gathered before it goes out anyway.
	batchSize = 16 << 10
)

// buffers are those of all batches: a log that is silent holds none.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// batch passes lines on, those that come close together in one delivery. A delivery that nobody takes
// ends the request. It must be closed before the handler returns.
type batch struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	// patience bounds one delivery; 0 is for ever.
	patience time.Duration

	mu        sync.Mutex
	held      *[]byte // what is to be delivered; nil if nothing
	timer     *time.Timer
	armed     bool
	delivered time.Time
	err       error
	closed    bool
}

func newBatch(w http.ResponseWriter, patience time.Duration) *batch {
	return &batch{w: w, controller: http.NewResponseController(w), patience: patience}
}

// Write implements io.Writer.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	if b.held == nil {
		b.held = buffers.Get().(*[]byte)
	}
	*b.held = append(*b.held, p...)
	wait := batchPause - time.Since(b.delivered)
	if wait <= 0 || len(*b.held) >= batchSize {
		b.deliver()
	} else if !b.armed {
		b.armed = true
		if b.timer == nil {
			b.timer = time.AfterFunc(wait, b.due)
		} else {
			b.timer.Reset(wait)
		}
	}
	if b.err != nil {
		return 0, b.err
	}
	return len(p), nil
}

// due delivers what no further line has pushed out.
func (b *batch) due() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = false
	if !b.closed {
		b.deliver()
	}
}

// close delivers the rest. The writer is not used after it.
func (b *batch) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.deliver()
}

// begin sends the header, also when the log is silent for hours.
func (b *batch) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flush(nil)
	return b.err
}

func (b *batch) deliver() {
	if b.held == nil || b.err != nil {
		return
	}
	b.flush(*b.held)
	*b.held = (*b.held)[:0]
	if cap(*b.held) <= 2*batchSize { // one long line must not be kept for ever
		buffers.Put(b.held)
	}
	b.held = nil
	b.delivered = time.Now()
}

func (b *batch) flush(p []byte) {
	if !setWriteDeadline(b.w, b.patience) {
		b.err = errNoFlush
		return
	}
	if _, b.err = b.w.Write(p); b.err == nil {
		b.err = b.controller.Flush()
	}
}
