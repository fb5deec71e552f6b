package pods

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// What a pod shows that ran for longer than it may, in the kubelet's words.
const (
	reasonDeadlineExceeded  = "DeadlineExceeded"
	messageDeadlineExceeded = "Pod was active on the node longer than the specified deadline"
)

// deadline is when the pod's activeDeadlineSeconds are over, counted from its status'
// start time, so that a restart of podsync does not prolong it; zero if it has none. One
// that has no start time yet gets it with this sync.
func (w *worker) deadline(p *v1.Pod) time.Time {
	if p.Spec.ActiveDeadlineSeconds == nil {
		return time.Time{}
	}
	began := time.Now()
	if !p.Status.StartTime.IsZero() {
		began = p.Status.StartTime.Time
	}
	if last, ok := w.deps.Statuses.Last(w.uid); ok && !last.StartTime.IsZero() {
		began = last.StartTime.Time
	}
	return began.Add(time.Duration(*p.Spec.ActiveDeadlineSeconds) * time.Second)
}

// expire ends a pod whose deadline is over.
func (w *worker) expire(p *v1.Pod) {
	deadline := w.deadline(p)
	if deadline.IsZero() || time.Now().Before(deadline) {
		return
	}
	w.deps.event(p, v1.EventTypeNormal, reasonDeadlineExceeded, messageDeadlineExceeded)
	w.inbox.expire()
}
