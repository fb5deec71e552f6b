package objects

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

const (
	// forbiddenFor is how long a watch may be forbidden before an operator learns of it. The Node authorizer learns of
	// pods by a watch of its own: for a moment it does not know a pod yet, or knows it no more while its containers
	// still stop.
	forbiddenFor = 15 * time.Second
	// quietly is the verbosity of what is harmless.
	quietly = 4
)

// quiet is a log of one watch. What is said of a watch that is wanted no longer, or is forbidden for a moment, is no
// error; what lasts is.
type quiet struct {
	klog.LogSink
	row *row
}

// row counts the same answers to a watch in a row.
type row struct {
	ended func() bool

	mu    sync.Mutex
	since time.Time // of the first "forbidden" after an answer; zero for none
}

// quietContext returns ctx with the log of one watch, and its row.
func quietContext(ctx context.Context) (context.Context, *row) {
	r := &row{ended: func() bool { return ctx.Err() != nil }}
	log := klog.FromContext(ctx)
	return klog.NewContext(ctx, log.WithSink(quiet{log.GetSink(), r})), r
}

// answered: the apiserver has answered, so the row is over.
func (r *row) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = time.Time{}
}

func (r *row) harmless(err error) bool {
	if r.ended() {
		return true
	}
	if !apierrors.IsForbidden(err) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return time.Since(r.since) < forbiddenFor
}

// Error implements logr.LogSink.
func (q quiet) Error(err error, message string, keysAndValues ...any) {
	if !q.row.harmless(err) {
		q.LogSink.Error(err, message, keysAndValues...)
		return
	}
	if q.Enabled(quietly) {
		q.Info(quietly, message, append(keysAndValues, "err", err)...)
	}
}

// WithValues implements logr.LogSink.
func (q quiet) WithValues(keysAndValues ...any) klog.LogSink {
	return quiet{q.LogSink.WithValues(keysAndValues...), q.row}
}

// WithName implements logr.LogSink.
func (q quiet) WithName(name string) klog.LogSink { return quiet{q.LogSink.WithName(name), q.row} }
