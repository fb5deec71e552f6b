// Package podtrace keeps the trace that each pod is in.
//
// A trace begins with a sync of a pod. Later syncs are in the same trace until the pod has come to rest, so that the
// start of a pod is one trace however many syncs it takes. A component that reports on a pod, which may be later than
// the sync and elsewhere, finds the trace by the pod's UID.
package podtrace

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/tracing"
)

// longest is how long a pod that finds no rest stays in one trace: one that crashes for ever would fill it.
const longest = 10 * time.Minute

// Traces are those of all pods. Nil has none.
type Traces struct {
	tracer *tracing.Tracer

	mu   sync.Mutex
	pods map[types.UID]*trace
}

// trace is a pod's.
type trace struct {
	// first is the sync that began the trace, and last the newest.
	first, last tracing.Parent
	began       time.Time
	rests       bool
}

// New returns the traces that t records; none if it is nil.
func New(t *tracing.Tracer) *Traces {
	if t == nil {
		return nil
	}
	return &Traces{tracer: t, pods: map[types.UID]*trace{}}
}

// Begin begins a span for a sync of a pod.
func (t *Traces) Begin(ctx context.Context, p *v1.Pod, name string) (context.Context, tracing.Span) {
	if t == nil {
		return ctx, tracing.Span{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.pods[p.UID]
	if of == nil || of.rests || time.Since(of.began) > longest {
		of = &trace{began: time.Now()}
		t.pods[p.UID] = of
	}
	ctx, span := t.tracer.Begin(of.first.In(ctx), name)
	of.last = tracing.ParentOf(ctx)
	if of.first.None() {
		of.first = of.last
	}
	if span.Recording() {
		span.Set(tracing.PodUID, string(p.UID))
		span.Set(tracing.PodName, p.Name)
		span.Set(tracing.PodNamespace, p.Namespace)
	}
	return ctx, span
}

// Rest ends the trace of a pod: its next sync begins another.
func (t *Traces) Rest(uid types.UID) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.pods[uid]; of != nil {
		of.rests = true
	}
}

// Of returns the newest sync of a pod.
func (t *Traces) Of(uid types.UID) tracing.Parent {
	if t == nil {
		return tracing.Parent{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.pods[uid]; of != nil {
		return of.last
	}
	return tracing.Parent{}
}

// Forget forgets a pod that is gone.
func (t *Traces) Forget(uid types.UID) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, uid)
}
