package telemetry

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// writerLimit bounds the bytes that wait for a reader that is slow or stopped: minutes of a chatty
// service's log, and little memory.
const writerLimit = 1 << 20

// Writer passes whole writes on to another writer without ever waiting for it. While more than 1 MiB
// waits, further writes are dropped and counted.
//
// Its goroutine lives as long as the process: a log has no end before that.
type Writer struct {
	out     io.Writer
	dropped atomic.Uint64

	mu      sync.Mutex
	tee     io.Writer
	pending []byte
	spare   []byte
	writing bool
	wake    *sync.Cond // the goroutine waits for something to write
	drained *sync.Cond // Flush waits for nothing to write
}

var _ io.Writer = (*Writer)(nil)

// NewWriter returns a Writer to out.
func NewWriter(out io.Writer) *Writer {
	w := &Writer{out: out}
	w.wake = sync.NewCond(&w.mu)
	w.drained = sync.NewCond(&w.mu)
	go w.drain()
	return w
}

// Write takes p, or drops it; it always reports success, since the caller is a logger that could
// only log the failure.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tee != nil {
		_, _ = w.tee.Write(p) // see Tee
	}
	if len(w.pending)+len(p) > writerLimit {
		w.dropped.Add(1)
		return len(p), nil
	}
	w.pending = append(w.pending, p...)
	w.wake.Signal()
	return len(p), nil
}

// Tee passes each further write to another writer too, which must neither wait nor fail, nor write to this one. It gets
// what is dropped as well.
func (w *Writer) Tee(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tee = to
}

// Dropped counts the writes that were dropped.
func (w *Writer) Dropped() uint64 { return w.dropped.Load() }

// Flush waits until everything taken has been passed on, or until the timeout.
func (w *Writer) Flush(timeout time.Duration) {
	late := false
	t := time.AfterFunc(timeout, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		late = true
		w.drained.Broadcast()
	})
	defer t.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !late && (len(w.pending) > 0 || w.writing) {
		w.drained.Wait()
	}
}

func (w *Writer) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.pending) == 0 {
			w.wake.Wait()
		}
		batch := w.pending
		w.pending, w.writing = w.spare[:0], true
		w.mu.Unlock()
		_, err := w.out.Write(batch)
		w.mu.Lock()
		if err != nil {
			w.dropped.Add(1) // the log itself is gone, so there is nowhere to say it but the metric
		}
		w.spare, w.writing = batch, false
		if cap(batch) > writerLimit/8 {
			w.spare = nil // a burst is over; give its memory back
		}
		w.drained.Broadcast()
	}
}
