package allocation

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Conditions returns the conditions of a pod that say how its resize fares.
func (a *Allocation) Conditions(uid types.UID) []v1.PodCondition {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[uid]
	if e == nil {
		return nil
	}
	var all []v1.PodCondition
	for _, c := range []*v1.PodCondition{e.pending, e.progress} {
		if c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// newCondition returns the condition that follows an older one, or nil. One that says the same stays as it is.
func newCondition(kind v1.PodConditionType, old *v1.PodCondition, reason, message string,
	generation int64) *v1.PodCondition {
	now := metav1.Now()
	c := &v1.PodCondition{
		Type: kind, Status: v1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now, ObservedGeneration: generation,
		Reason: reason, Message: message,
	}
	if old == nil || old.Reason != reason {
		return c
	}
	if old.Message == message && old.ObservedGeneration == generation {
		return old
	}
	c.LastTransitionTime = old.LastTransitionTime
	return c
}

// setPending changes the condition PodResizePending; nil removes it. The caller holds mu.
func (a *Allocation) setPending(e *entry, c *v1.PodCondition) {
	a.metrics.countPending(e, -1)
	e.pending = c
	a.metrics.countPending(e, 1)
}

// setProgress changes the condition PodResizeInProgress; nil removes it. The caller holds mu.
func (a *Allocation) setProgress(e *entry, c *v1.PodCondition) {
	if (e.progress == nil) != (c == nil) {
		if c == nil {
			a.metrics.inProgress.Dec()
		} else {
			a.metrics.inProgress.Inc()
		}
	}
	e.progress = c
	if c == nil {
		e.began = time.Time{}
	}
}

// resolve removes the condition PodResizePending. The caller holds mu.
func (a *Allocation) resolve(e *entry, how resolution) {
	if e.pending == nil {
		return
	}
	a.metrics.resolved(e, how)
	a.setPending(e, nil)
}
