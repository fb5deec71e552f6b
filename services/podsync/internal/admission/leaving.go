package admission

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
)

// leavingPatience is how long a pod waits for the end of one that leaves. The kubelet does not wait: it admits the pod
// beside what still runs.
const leavingPatience = time.Minute

// Removed notes that the source of a pod wants it no longer, so that it leaves: it was deleted without its grace
// period, or its end was not seen. It is no reason to reject another pod, which waits for its end instead.
func (a *Admitter) Removed(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.pods[uid]; e != nil && e.leaves.IsZero() {
		e.leaves = time.Now()
		a.wake()
	}
}

// staying are the pods that do not leave.
func staying(all []*entry) []*entry {
	var stay []*entry
	for _, e := range all {
		if e.leaves.IsZero() {
			stay = append(stay, e)
		}
	}
	return stay
}

// waitsForLeaving reports whether a pod that has a place beside those that stay is to wait for the end of others.
func (a *Admitter) waitsForLeaving(ctx context.Context, e *entry, others []*entry) bool {
	var count []*entry
	overdue := false
	var until time.Time
	for _, other := range others {
		if other.leaves.IsZero() {
			count = append(count, other)
			continue
		}
		end := other.leaves.Add(leavingPatience)
		if !time.Now().Before(end) {
			overdue = true
			continue
		}
		count = append(count, other)
		if until.IsZero() || end.Before(until) {
			until = end
		}
	}
	log := a.o.Log.With(logkey.Pod, e.pod.Namespace+"/"+e.pod.Name, logkey.PodUID, e.pod.UID)
	if !until.IsZero() {
		if v := ask(ctx, a.o.Handlers, a.attributes(e.pod, count)); !v.Admitted() || v.Preempt != nil {
			if e.until.IsZero() {
				log.Info("pod waits for the end of pods that were removed", logkey.Reason, v.Reason, logkey.Message, v.Message)
			}
			e.until = until
			return true
		}
	}
	switch {
	case e.until.IsZero():
		return false
	case overdue:
		log.Warn("pod is admitted beside pods that were removed and have not ended")
		a.metrics.waits.WithLabelValues("overdue").Inc()
	default:
		a.metrics.waits.WithLabelValues("ended").Inc()
	}
	e.until = time.Time{}
	return false
}
