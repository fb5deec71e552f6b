// Package spanqueue is a bounded queue of spans on their way to a receiver that may be slow, or gone.
//
// Who adds to a queue never waits. What does not fit is dropped and counted. Run, which is a part of the service, sends
// in batches, tries again for some minutes while the receiver is away, and at the end of the service sends what is left
// within a second.
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
	"github.com/microlet/microlet/services/internal/signal"
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
	// patience is how long one batch is tried: a batch that never arrives must not be in the way of all others.
	patience = 5 * time.Minute
)

// Reasons of drops.
const (
	reasonFull    = "full"
	reasonRefused = "refused"
	reasonLate    = "late"
	reasonStopped = "stopped"
)

// Options of a Queue of T, which is a span.
type Options[T any] struct {
	// Limit bounds the spans that wait, and Batch those that are sent at once.
	Limit, Batch int
	// Send sends a batch. An error with a gRPC code that says that no repetition helps drops it.
	Send func(ctx context.Context, batch []T) error
	Log  *slog.Logger
	// Metrics gets microlet_trace_spans_sent_total and microlet_trace_spans_dropped_total.
	Metrics prometheus.Registerer
}

// Queue is a queue of spans. Make it with New.
type Queue[T any] struct {
	o       Options[T]
	sent    prometheus.Counter
	dropped *prometheus.CounterVec

	mu     sync.Mutex
	spans  []T
	flight int  // spans of the batch that is under way
	lossy  bool // something was dropped since the last batch arrived
	wake   signal.Signal
}

// New returns a queue, which sends once Run runs.
func New[T any](o Options[T]) (*Queue[T], error) {
	q := &Queue[T]{
		o: o, wake: signal.New(),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_trace_spans_sent_total",
			Help: "Spans of traces that the collector has taken.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_trace_spans_dropped_total",
			Help: "Spans of traces that were dropped, by reason: full (too many waited), refused (by the collector), " +
				"late (they did not arrive for minutes), stopped (the service ended).",
		}, []string{"reason"}),
	}
	if err := o.Metrics.Register(q.sent); err != nil {
		return nil, err
	}
	return q, o.Metrics.Register(q.dropped)
}

// Add adds a span, or drops it when too many wait; it returns false then. It never waits.
func (q *Queue[T]) Add(span T) bool {
	q.mu.Lock()
	if len(q.spans)+q.flight >= q.o.Limit {
		q.mu.Unlock()
		q.drop(reasonFull, 1)
		return false
	}
	q.spans = append(q.spans, span)
	q.mu.Unlock()
	q.wake.Set()
	return true
}

// drop counts what is lost, and logs the first of it since something arrived.
func (q *Queue[T]) drop(reason string, spans int) {
	q.dropped.WithLabelValues(reason).Add(float64(spans))
	q.mu.Lock()
	first := !q.lossy
	q.lossy = true
	q.mu.Unlock()
	if first {
		q.o.Log.Warn("spans of traces are dropped, and traces will lack them", logkey.Reason, reason, "spans", spans)
	}
}

// take takes the next batch out of the queue. It counts as waiting until the next take.
func (q *Queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flight = min(len(q.spans), q.o.Batch)
	batch := q.spans[:q.flight:q.flight]
	if q.spans = q.spans[q.flight:]; len(q.spans) == 0 {
		q.spans = nil // a queue that was long once keeps no memory
	}
	return batch
}

// Run sends until ctx ends, and then what is left.
func (q *Queue[T]) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
		case <-q.wake:
		}
		if pause.For(ctx, linger) != nil {
			q.flush(ctx, q.take())
			return nil
		}
		for batch := q.take(); len(batch) > 0; batch = q.take() {
			if !q.deliver(ctx, batch) {
				q.flush(ctx, batch)
				return nil
			}
		}
	}
}

// deliver tries until a batch has arrived, was refused, or is given up. It returns false when ctx ended before.
func (q *Queue[T]) deliver(ctx context.Context, batch []T) bool {
	began := time.Now()
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := q.send(ctx, batch)
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case refused(err):
			q.o.Log.Debug("the collector refuses spans", logkey.Err, err)
			q.drop(reasonRefused, len(batch))
			return true
		case time.Since(began) > patience:
			q.drop(reasonLate, len(batch))
			return true
		case wait == retryMin:
			q.o.Log.Warn("spans of traces do not arrive, they are sent again", logkey.Err, err)
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
	q.sent.Add(float64(len(batch)))
	q.mu.Lock()
	q.lossy = false
	q.mu.Unlock()
	return nil
}

// flush sends a batch and what is left after it, though ctx has ended. It drops all from the first failure on.
func (q *Queue[T]) flush(ctx context.Context, batch []T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	lost := 0
	for ; len(batch) > 0; batch = q.take() {
		if lost > 0 || q.send(ctx, batch) != nil {
			lost += len(batch)
		}
	}
	if lost > 0 {
		q.drop(reasonStopped, lost)
	}
}

// refused reports whether sending the same again cannot help.
// Source: OTLP specification 1.9, "Failures" of OTLP/gRPC, the codes that are not retryable. Of ResourceExhausted it
// says that for some collectors alone; here it is also nodestatus's answer while it has no place for a call.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss,
		codes.ResourceExhausted:
		return false
	default:
		return true
	}
}
