// Package victimeviction ends a pod that package preemption selected, so that a critical pod can start.
//
// The end has the kubelet's reason, message, condition and events. The pod gets its own grace period. A caller that
// waits for the end does not wait forever.
package victimeviction

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// Workers end pods; see worker.Workers.
type Workers interface {
	Evict(ctx context.Context, uid types.UID, override status.Override, grace *int64) error
}

// Evictor ends victims.
type Evictor struct {
	workers Workers
	events  record.EventRecorder
}

var _ admission.Evictor = (*Evictor)(nil)

// New returns a Preemptor.
func New(workers Workers, events record.EventRecorder) *Evictor {
	return &Evictor{workers: workers, events: events}
}

const preempting = "Preempting"

// Evict implements admission.Evictor. It gives the victim its own grace period and half
// of it again, as the kubelet does, and at least 10 s.
func (e *Evictor) Evict(ctx context.Context, victim *v1.Pod) error {
	const message = "Preempted in order to admit critical pod"
	e.events.Event(victim, v1.EventTypeWarning, preempting, message)
	ctx, cancel := context.WithTimeout(ctx, patience(victim))
	defer cancel()
	err := e.workers.Evict(ctx, victim.UID, status.Override{
		Phase: v1.PodFailed, Reason: preempting, Message: message, Yields: true,
		Condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
		},
	}, nil)
	switch {
	case errors.Is(err, worker.ErrUnknownPod):
		return nil // it is gone, which is what was wanted
	case errors.Is(err, context.DeadlineExceeded):
		e.events.Event(victim, v1.EventTypeWarning, "ExceededGracePeriod",
			"Container runtime did not kill the pod within specified grace period.")
		return fmt.Errorf("timeout waiting to kill pod: %w", err)
	}
	return err
}

func patience(p *v1.Pod) time.Duration {
	const least = 10 * time.Second
	if p.Spec.TerminationGracePeriodSeconds == nil {
		return least
	}
	grace := time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
	return max(grace+grace/2, least)
}
