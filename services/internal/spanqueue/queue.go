// Package spanqueue is a bounded queue of spans on their way to somebody who may be slow, or gone.
//
// Who adds to a queue never waits. What does not fit is dropped and counted. Run, which is a part of the service, sends
// in batches, tries again while the receiver is away, and at the end of the service sends what is left within a second.
package spanqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
)

const (
	// linger is how long a queue waits for more to send with the first.
	linger = time.Second
	// sendTimeout bounds one try.
	sendTimeout = 10 * time.Second
	// flushTimeout bounds all of what is sent when the service ends.
	flushTimeout = time.Second

	retryMin = time.Second
	retryMax = 30 * time.Second
)

// Reasons of drops.
const (
	reasonFull    = "full"
	reasonRefused = "refused"
	reasonStopped = "stopped"
)

// Options of a Queue of T.
type Options[T any] struct {
	// To names the receiver in metrics and in the log.
	To string
	// Size returns how much of Limit an item takes, and Spans how many spans it holds.
	Size, Spans func(T) int
	// Limit bounds what waits, and Batch what is sent at once, by Size. An item that alone is larger than Batch is sent
	// alone.
	Limit, Batch int
	// Send sends a batch. An error with a gRPC code that says that no repetition helps drops it.
	Send func(ctx context.Context, batch []T) error
	Log  *slog.Logger
	// Metrics gets microlet_trace_spans_sent_total and microlet_trace_spans_dropped_total.
	Metrics prometheus.Registerer
}

// Queue is a queue of items of T. Make it with New.
type Queue[T any] struct {
	o       Options[T]
	sent    prometheus.Counter
	dropped *prometheus.CounterVec

	mu    sync.Mutex
	items []T
	size  int  // of items, and of the batch that is under way
	lossy bool // something was dropped since the last batch arrived
	wake  chan struct{}
}

// New returns a queue, which sends once Run runs.
func New[T any](o Options[T]) (*Queue[T], error) {
	q := &Queue[T]{
		o: o, wake: make(chan struct{}, 1),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_trace_spans_sent_total", ConstLabels: prometheus.Labels{"to": o.To},
			Help: "Spans of traces that the receiver has taken.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_trace_spans_dropped_total", ConstLabels: prometheus.Labels{"to": o.To},
			Help: "Spans of traces that were dropped, by reason: full (too many waited), refused (by the receiver), " +
				"stopped (the service ended).",
		}, []string{"reason"}),
	}
	if err := o.Metrics.Register(q.sent); err != nil {
		return nil, err
	}
	return q, o.Metrics.Register(q.dropped)
}

// Add adds an item, or drops it when too much waits; it returns false then. It never waits.
func (q *Queue[T]) Add(item T) bool {
	q.mu.Lock()
	size := q.o.Size(item)
	if q.size+size > q.o.Limit {
		q.mu.Unlock()
		q.drop(reasonFull, item)
		return false
	}
	q.size += size
	q.items = append(q.items, item)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// drop counts what is lost, and logs the first of it since something arrived.
func (q *Queue[T]) drop(reason string, items ...T) {
	spans := q.spans(items)
	q.dropped.WithLabelValues(reason).Add(float64(spans))
	q.mu.Lock()
	first := !q.lossy
	q.lossy = true
	q.mu.Unlock()
	if first && spans > 0 {
		q.o.Log.Warn("spans of traces are dropped, and traces will lack them", "to", q.o.To, logkey.Reason, reason,
			"spans", spans)
	}
}

func (q *Queue[T]) spans(items []T) int {
	n := 0
	for _, item := range items {
		n += q.o.Spans(item)
	}
	return n
}

// take takes the next batch out of the queue; its size counts until it is settled.
func (q *Queue[T]) take() (batch []T, size int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(batch) < len(q.items) {
		next := q.o.Size(q.items[len(batch)])
		if len(batch) > 0 && size+next > q.o.Batch {
			break
		}
		size += next
		batch = q.items[:len(batch)+1]
	}
	q.items = q.items[len(batch):]
	if len(q.items) == 0 {
		q.items = nil
	}
	return batch, size
}

func (q *Queue[T]) settle(size int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.size -= size
}

// Run sends until ctx ends, and then what is left.
func (q *Queue[T]) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
		case <-q.wake:
		}
		if pause.For(ctx, linger) != nil {
			q.flush(ctx)
			return nil
		}
		for batch, size := q.take(); len(batch) > 0; batch, size = q.take() {
			if !q.deliver(ctx, batch) {
				q.giveBack(batch)
				q.flush(ctx)
				return nil
			}
			q.settle(size)
		}
	}
}

// giveBack undoes take.
func (q *Queue[T]) giveBack(batch []T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(batch, q.items...)
}

// deliver tries until a batch has arrived or was refused. It returns false when ctx ended before.
func (q *Queue[T]) deliver(ctx context.Context, batch []T) bool {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := q.send(ctx, batch)
		switch {
		case err == nil:
			return true
		case refused(err):
			q.drop(reasonRefused, batch...)
			q.o.Log.Debug("the receiver of spans refuses them", "to", q.o.To, logkey.Err, err)
			return true
		case ctx.Err() != nil:
			return false
		case wait == retryMin:
			q.o.Log.Warn("spans of traces do not arrive, they are sent again", "to", q.o.To, logkey.Err, err)
		}
		if pause.For(ctx, wait) != nil {
			return false
		}
	}
}

func (q *Queue[T]) send(ctx context.Context, batch []T) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if err := q.o.Send(ctx, batch); err != nil {
		return err
	}
	q.sent.Add(float64(q.spans(batch)))
	q.mu.Lock()
	q.lossy = false
	q.mu.Unlock()
	return nil
}

// flush sends what is left after ctx's end, and drops it from the first failure on.
func (q *Queue[T]) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	failed := false
	for batch, size := q.take(); len(batch) > 0; batch, size = q.take() {
		q.settle(size)
		if failed = failed || q.send(ctx, batch) != nil; failed {
			q.drop(reasonStopped, batch...)
		}
	}
}

// refused reports whether sending the same again cannot help.
// Source: OTLP specification 1.9, "Failures" of OTLP/gRPC, the codes that are not retryable.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.Unimplemented, codes.Internal:
		return true
	default:
		return false
	}
}
