package record

import (
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Ready reports whether the pod's condition Ready is true.
func Ready(p *corev1.Pod) bool { return PodCondition(p, corev1.PodReady) == corev1.ConditionTrue }

// PodCondition returns the status of a condition, Unknown if the pod has none.
func PodCondition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// NodeIsReady reports whether the node's condition Ready is true.
func NodeIsReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Containers returns id, restart count and start of each container of a pod.
func Containers(p *corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, c := range p.Status.ContainerStatuses {
		all[c.Name] = fmt.Sprintf("%s, restarts %d", c.ContainerID, c.RestartCount)
		if c.State.Running != nil {
			all[c.Name] += ", since " + c.State.Running.StartedAt.UTC().Format(time.RFC3339)
		}
	}
	return all
}

// Untouched reports, for each pod of before that was Ready then, what the entries say against this:
// the same containers, never restarted, Ready all the time, never deleted.
func Untouched(before []*corev1.Pod, entries []Entry) []string {
	var problems []string
	want := map[types.UID]*corev1.Pod{}
	for _, p := range before {
		want[p.UID] = p
		if !Ready(p) {
			problems = append(problems, p.Name+" was not Ready at the begin")
		}
	}
	for _, e := range entries {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || want[p.UID] == nil {
			continue
		}
		at := fmt.Sprintf("%s at %s (revision %d): ", p.Name, e.At.Format("15:04:05.000"), e.Revision)
		if e.Deleted || p.DeletionTimestamp != nil {
			problems = append(problems, at+"deleted")
			continue
		}
		if !Ready(p) {
			problems = append(problems,
				at+fmt.Sprintf("not Ready: phase %s, conditions %s", p.Status.Phase, conditions(p)))
		}
		if now, was := Containers(p), Containers(want[p.UID]); !maps.Equal(now, was) {
			problems = append(problems, at+fmt.Sprintf("containers were %v and are %v", was, now))
		}
	}
	return problems
}

func conditions(p *corev1.Pod) string {
	text := ""
	for _, c := range p.Status.Conditions {
		text += fmt.Sprintf("[%s=%s %s %s]", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

// NodeReady returns each change after which the node was not Ready.
func NodeReady(entries []Entry) []string {
	var problems []string
	for _, e := range entries {
		n, ok := e.Object.(*corev1.Node)
		if !ok {
			continue
		}
		if e.Deleted || !NodeIsReady(n) {
			problems = append(problems,
				fmt.Sprintf("node at %s (revision %d): deleted %t, conditions %+v", e.At.Format("15:04:05.000"),
					e.Revision, e.Deleted, n.Status.Conditions))
		}
	}
	return problems
}

// LeaseAge is the greatest age that the node's Lease had between two times: how long ago it had been
// renewed when the next renewal was seen, or at the end. last is the Lease as it was at from.
func LeaseAge(last *coordinationv1.Lease, entries []Entry, to time.Time) time.Duration {
	var oldest time.Duration
	renewed := last.Spec.RenewTime.Time
	for _, e := range entries {
		l, ok := e.Object.(*coordinationv1.Lease)
		if !ok || e.Deleted || l.Spec.RenewTime == nil {
			continue
		}
		if e.At.After(to) {
			break
		}
		oldest = max(oldest, e.At.Sub(renewed))
		renewed = l.Spec.RenewTime.Time
	}
	return max(oldest, to.Sub(renewed))
}

// Times are those of one pod, as they were seen. Zero: it did not happen.
type Times struct{ Created, Ready, Deleted, Gone time.Time }

// PodTimes returns the times of all pods that were created within the entries, or were there before
// and were deleted within them.
func PodTimes(entries []Entry) map[types.UID]Times {
	all := map[types.UID]Times{}
	seen := map[types.UID]bool{}
	for _, e := range entries {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		t := all[p.UID]
		first := !seen[p.UID]
		seen[p.UID] = true
		switch {
		case e.Deleted:
			t.Gone = e.At
		case p.DeletionTimestamp != nil && t.Deleted.IsZero():
			t.Deleted = e.At
		case first && p.Status.StartTime == nil:
			t.Created = e.At
		}
		if t.Ready.IsZero() && Ready(p) && !t.Created.IsZero() {
			t.Ready = e.At
		}
		all[p.UID] = t
	}
	return all
}

// Percentile returns the value below which that part of the durations is; 0 of none.
func Percentile(durations []time.Duration, part float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}
