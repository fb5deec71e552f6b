package telemetry

import (
	"bytes"
	"io"
	"os"
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
// Its goroutines live as long as the process: a log has no end before that.
type Writer struct {
	main *queue
	info *queue // of lines below WARN, if they go to another stream

	mu  sync.Mutex
	tee io.Writer
}

var _ io.Writer = (*Writer)(nil)

// NewWriter returns a Writer to out.
func NewWriter(out io.Writer) *Writer { return &Writer{main: newQueue(out, 0, 0)} }

// newProcessWriter returns the writer of a process with these streams. Lines below WARN go to standard output if the
// options say so. Where both streams are one file there is nothing to split, and lines keep their order: such are those
// of a process below "microlet up", which splits the lines of all.
func newProcessWriter(o *LogOptions, stdout, stderr *os.File) *Writer {
	w := NewWriter(stderr)
	if o.SplitStream && !sameFile(stdout, stderr) {
		w.info = newQueue(stdout, int(min(o.InfoBufferSize, maxBuffer)), o.FlushFrequency)
	}
	return w
}

// sameFile is also true if one of them cannot be written to.
func sameFile(a, b *os.File) bool {
	of, errOf := a.Stat()
	as, errAs := b.Stat()
	return errOf != nil || errAs != nil || os.SameFile(of, as)
}

// Write takes p, or drops it; it always reports success, since the caller is a logger that could
// only log the failure.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tee != nil {
		_, _ = w.tee.Write(p) // see Tee
	}
	if w.info != nil && belowWarn(p) {
		w.info.add(p)
	} else {
		w.main.add(p)
	}
	return len(p), nil
}

// belowWarn reports whether a line of the log, as slog writes it behind its time, has such a level.
func belowWarn(line []byte) bool {
	key := " level="
	if bytes.HasPrefix(line, []byte("{")) {
		key = `"level":"`
	}
	_, level, ok := bytes.Cut(line, []byte(key))
	return ok && (bytes.HasPrefix(level, []byte("INFO")) || bytes.HasPrefix(level, []byte("DEBUG")))
}

// Tee passes each further write to another writer too, which must neither wait nor fail, nor write to this one. It gets
// what is dropped as well.
func (w *Writer) Tee(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tee = to
}

// Dropped counts the writes that were dropped.
func (w *Writer) Dropped() uint64 {
	n := w.main.dropped.Load()
	if w.info != nil {
		n += w.info.dropped.Load()
	}
	return n
}

// Flush waits until everything taken has been passed on, or until the timeout.
func (w *Writer) Flush(timeout time.Duration) {
	if w.info != nil {
		began := time.Now()
		w.info.flush(timeout)
		timeout -= time.Since(began)
	}
	w.main.flush(timeout)
}

// queue holds what a stream has not taken yet.
type queue struct {
	out     io.Writer
	buffer  int           // bytes that may wait to be written together; 0 writes them at once
	longest time.Duration // how long they may wait
	limit   int
	dropped atomic.Uint64

	mu      sync.Mutex
	pending []byte
	spare   []byte
	due     bool // what waits has waited long enough
	writing bool
	timer   *time.Timer
	wake    *sync.Cond // the goroutine waits for something to write
	drained *sync.Cond // flush waits for nothing to write
}

// maxBuffer is the kubelet's bound of a buffer.
const maxBuffer = 1 << 31

func newQueue(out io.Writer, buffer int, longest time.Duration) *queue {
	q := &queue{out: out, buffer: buffer, longest: longest, limit: writerLimit + buffer}
	q.wake = sync.NewCond(&q.mu)
	q.drained = sync.NewCond(&q.mu)
	go q.drain()
	return q
}

func (q *queue) add(p []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending)+len(p) > q.limit {
		q.dropped.Add(1)
		return
	}
	if q.buffer > 0 && len(q.pending) == 0 {
		q.timer = time.AfterFunc(q.longest, q.setDue)
	}
	q.pending = append(q.pending, p...)
	q.wake.Signal()
}

func (q *queue) setDue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.due = true
	q.wake.Signal()
}

// ready reports whether something is to be written now.
func (q *queue) ready() bool {
	return len(q.pending) > 0 && (q.due || len(q.pending) >= q.buffer)
}

func (q *queue) flush(timeout time.Duration) {
	late := false
	t := time.AfterFunc(timeout, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		late = true
		q.drained.Broadcast()
	})
	defer t.Stop()
	q.setDue()
	q.mu.Lock()
	defer q.mu.Unlock()
	for !late && (len(q.pending) > 0 || q.writing) {
		q.drained.Wait()
	}
}

func (q *queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for !q.ready() {
			q.wake.Wait()
		}
		if q.timer != nil {
			q.timer.Stop()
		}
		batch := q.pending
		q.pending, q.due, q.writing = q.spare[:0], false, true
		q.mu.Unlock()
		_, err := q.out.Write(batch)
		q.mu.Lock()
		if err != nil {
			q.dropped.Add(1) // the log itself is gone, so there is nowhere to say it but the metric
		}
		q.spare, q.writing = batch, false
		if cap(batch) > writerLimit/8 {
			q.spare = nil // a burst is over; give its memory back
		}
		q.drained.Broadcast()
	}
}
