// Package eviction ends a pod because the node is short of a resource, or because a critical pod needs its place.
//
// The end has the kubelet's reason, condition and events. A pod gets one event however often its eviction is asked for.
// A critical, static or mirror pod is never evicted, whatever asks. No pod is evicted for a limit that it does not
// have.
package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// Reason is the kubelet's, of the status and of the event.
const Reason = "Evicted"

// ErrCritical is returned for a pod that no pressure may end.
var ErrCritical = errors.New("the pod is critical, static or a mirror pod, which is never evicted")

// Workers know and end pods; see pods.Workers.
type Workers interface {
	Pods() []*v1.Pod
	Known(uid types.UID) bool
	Stopper
}

// Request is one eviction.
type Request struct {
	UID types.UID
	// Message of the status and of the event.
	Message string
	// GraceSeconds is what the containers get; less than 1 counts as 1.
	GraceSeconds int64
	// Annotations of the event.
	Annotations map[string]string
	// DisruptionTarget gives the pod this condition.
	DisruptionTarget bool
	// Limit is what the pod exceeds; nil if the node is short of a resource.
	Limit *Limit
}

// Evictor ends pods. It is safe for concurrent use.
type Evictor struct {
	workers Workers
	events  record.EventRecorder
	log     *slog.Logger
	refused *prometheus.CounterVec

	mu sync.Mutex
	// recorded are the pods with a recorded event.
	recorded map[types.UID]struct{}
}

// Labels of the metric of refusals.
const (
	refusedCritical = "critical"
	refusedLimit    = "limit"
)

// New returns an Evictor, and registers its metrics.
func New(workers Workers, events record.EventRecorder, log *slog.Logger, metrics prometheus.Registerer) *Evictor {
	e := &Evictor{workers: workers, events: events, log: log, recorded: map[types.UID]struct{}{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_evictions_refused_total",
			Help: "Evictions that podsync refused: of a critical pod, or for a limit that the pod does not exceed.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{refusedCritical, refusedLimit} {
		e.refused.WithLabelValues(reason)
	}
	metrics.MustRegister(e.refused)
	return e
}

// Evict ends the pod and returns when its containers have stopped. It returns pod.ErrUnknown if nothing of the pod is
// on this node. It waits half as long again as the grace period, as the kubelet does, and at least 10 s; the pod is
// stopped all the same then.
func (e *Evictor) Evict(ctx context.Context, r Request) error {
	p := e.find(r.UID)
	if p == nil {
		return fmt.Errorf("evict pod %s: %w", r.UID, pod.ErrUnknown)
	}
	if err := e.check(p, r.Limit); err != nil {
		e.log.Warn("pod is not evicted", logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID, logkey.Err, err)
		return fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if e.first(r.UID) {
		e.log.Info("pod is evicted", logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID, logkey.Message, r.Message)
		e.events.AnnotatedEventf(p, r.Annotations, v1.EventTypeWarning, Reason, "%s", r.Message)
	}
	grace := max(r.GraceSeconds, 1)
	ctx, cancel := context.WithTimeout(ctx, patience(time.Duration(grace)*time.Second))
	defer cancel()
	err := e.workers.Evict(ctx, p.UID, r.override(), &grace)
	if errors.Is(err, context.DeadlineExceeded) {
		e.events.Event(p, v1.EventTypeWarning, "ExceededGracePeriod",
			"Container runtime did not kill the pod within specified grace period.")
	}
	return err
}

// check returns why the pod may not be evicted.
func (e *Evictor) check(p *v1.Pod, limit *Limit) error {
	if podutil.IsCritical(p) {
		e.refused.WithLabelValues(refusedCritical).Inc()
		return ErrCritical
	}
	if limit == nil {
		return nil
	}
	err := limit.check(p)
	if err != nil {
		e.refused.WithLabelValues(refusedLimit).Inc()
	}
	return err
}

func (r Request) override() status.Override {
	o := status.Override{Phase: v1.PodFailed, Reason: Reason, Message: r.Message, Yields: true}
	if r.DisruptionTarget {
		o.Condition = &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message: r.Message,
		}
	}
	return o
}

func (e *Evictor) find(uid types.UID) *v1.Pod {
	for _, p := range e.workers.Pods() {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

// first reports whether the pod's event is not recorded yet, and forgets pods that are gone.
func (e *Evictor) first(uid types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for old := range e.recorded {
		if !e.workers.Known(old) {
			delete(e.recorded, old)
		}
	}
	_, recorded := e.recorded[uid]
	e.recorded[uid] = struct{}{}
	return !recorded
}

// patience is how long the end of a pod is waited for: half as long again as its grace period, and at least 10 s.
func patience(grace time.Duration) time.Duration { return max(grace+grace/2, 10*time.Second) }
