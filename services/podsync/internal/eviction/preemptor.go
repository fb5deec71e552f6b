package eviction

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// Stopper ends a pod and returns when its containers have stopped; see pods.Workers.
type Stopper interface {
	Evict(ctx context.Context, uid types.UID, override status.Override, grace *int64) error
}

// Preemptor ends pods so that a critical pod can start. The end has the kubelet's reason, message, condition and
// events.
type Preemptor struct {
	workers Stopper
	events  record.EventRecorder
}

// NewPreemptor returns a Preemptor.
func NewPreemptor(workers Stopper, events record.EventRecorder) *Preemptor {
	return &Preemptor{workers: workers, events: events}
}

const preempting = "Preempting"

// Evict ends a pod that package preemption selected, and returns when its containers have stopped. It gives the victim
// its own grace period and half of it again, as the kubelet does, and at least 10 s.
func (e *Preemptor) Evict(ctx context.Context, victim *v1.Pod) error {
	const message = "Preempted in order to admit critical pod"
	e.events.Event(victim, v1.EventTypeWarning, preempting, message)
	ctx, cancel := context.WithTimeout(ctx, patience(gracePeriod(victim)))
	defer cancel()
	err := e.workers.Evict(ctx, victim.UID, status.Override{
		Phase: v1.PodFailed, Reason: preempting, Message: message, Yields: true,
		Condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
		},
	}, nil)
	switch {
	case errors.Is(err, pod.ErrUnknown):
		return nil // it is gone, which is what was wanted
	case errors.Is(err, context.DeadlineExceeded):
		e.events.Event(victim, v1.EventTypeWarning, "ExceededGracePeriod",
			"Container runtime did not kill the pod within specified grace period.")
		return fmt.Errorf("timeout waiting to kill pod: %w", err)
	}
	return err
}

func gracePeriod(p *v1.Pod) time.Duration {
	if p.Spec.TerminationGracePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
}
