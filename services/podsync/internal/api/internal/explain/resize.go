package explain

import (
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pods"
)

// resize is how a pod's resize fares; nil if none is asked for or under way.
func (s *Server) resize(w *pods.Standing) *podsyncv1.Resize {
	known, ok := s.d.Allocation.Explain(w.Pod.UID)
	if !ok || known.Granted == nil {
		return nil
	}
	r := &podsyncv1.Resize{Deciding: known.Deciding, InProgress: known.InProgress != nil}
	if c := known.Pending; c != nil {
		r.PendingReason, r.PendingMessage = c.Reason, c.Message
	}
	if c := known.InProgress; c != nil {
		r.Error = c.Message
	}
	if known.Unwritten != nil {
		r.Unwritten = known.Unwritten.Error()
	}
	r.Amounts = amounts(w, known.Desired, *known.Granted, known.Actuated)
	if len(r.Amounts) == 0 && known.Pending == nil && known.InProgress == nil {
		return nil
	}
	return r
}

// amounts are those in which what the pod asks for, was granted and was given are not the same.
func amounts(w *pods.Standing, desired, granted pod.Resources, given *pod.Resources) []*podsyncv1.ResourceAmount {
	var has *v1.ResourceRequirements
	if given != nil {
		has = given.Pod
	}
	all := differing("", orNone(desired.Pod), orNone(granted.Pod), has)
	p := granted.Of(w.Pod)
	for c := range podutil.Containers(&p.Spec) {
		has = nil
		if given != nil && runs(w, c.Name) {
			if r, known := given.Own(p, c); known {
				has = &r
			}
		}
		all = append(all, differing(c.Name, desired.Containers[c.Name], c.Resources, has)...)
	}
	return all
}

func runs(w *pods.Standing, container string) bool {
	if w.State == nil {
		return false
	}
	newest := w.State.Latest(container)
	return newest != nil && newest.Running()
}

func orNone(r *v1.ResourceRequirements) v1.ResourceRequirements {
	if r == nil {
		return v1.ResourceRequirements{}
	}
	return *r
}

// differing are the amounts of one container, or of the pod, that are not all the same.
func differing(container string, desired, granted v1.ResourceRequirements,
	given *v1.ResourceRequirements) (all []*podsyncv1.ResourceAmount) {
	for _, one := range []struct {
		field string
		list  func(*v1.ResourceRequirements) v1.ResourceList
		name  v1.ResourceName
	}{
		{"requests.cpu", requests, v1.ResourceCPU}, {"limits.cpu", limits, v1.ResourceCPU},
		{"requests.memory", requests, v1.ResourceMemory}, {"limits.memory", limits, v1.ResourceMemory},
	} {
		a := &podsyncv1.ResourceAmount{
			Container: container, Field: one.field,
			Desired:   quantity(one.list(&desired), one.name),
			Allocated: quantity(one.list(&granted), one.name),
		}
		if given != nil {
			a.Actuated = new(quantity(one.list(given), one.name))
		}
		if a.Desired != a.Allocated || a.Actuated != nil && a.GetActuated() != a.Allocated {
			all = append(all, a)
		}
	}
	return all
}

func requests(r *v1.ResourceRequirements) v1.ResourceList { return r.Requests }
func limits(r *v1.ResourceRequirements) v1.ResourceList   { return r.Limits }

// quantity is an amount in its canonical form; empty if there is none.
func quantity(list v1.ResourceList, name v1.ResourceName) string {
	q, ok := list[name]
	if !ok {
		return ""
	}
	return q.String()
}
