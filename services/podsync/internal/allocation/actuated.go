package allocation

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Actuated returns the resources that were last given to the runtime and the cgroups, as far as that is recorded.
func (a *Allocation) Actuated(uid types.UID) (pod.Resources, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.pods[uid]; e != nil && e.actuated != nil {
		return *e.actuated, true
	}
	return pod.Resources{}, false
}

// SetActuatedContainer records the resources that were given to a container. It is written later: what a crash loses
// of it is given to the container once more.
func (a *Allocation) SetActuatedContainer(uid types.UID, name string, r v1.ResourceRequirements) {
	a.setActuated(uid, func(all *pod.Resources) {
		all.Containers = maps.Clone(all.Containers)
		if all.Containers == nil {
			all.Containers = map[string]v1.ResourceRequirements{}
		}
		all.Containers[name] = r
	})
}

// SetActuatedPod records the pod-level resources that were given to a pod's cgroup; nil for a pod without.
func (a *Allocation) SetActuatedPod(uid types.UID, r *v1.ResourceRequirements) {
	a.setActuated(uid, func(all *pod.Resources) { all.Pod = r })
}

func (a *Allocation) setActuated(uid types.UID, change func(*pod.Resources)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[uid]
	if e == nil {
		return
	}
	var next pod.Resources
	if e.actuated != nil {
		next = *e.actuated
	}
	change(&next)
	if e.actuated != nil && next.Equal(*e.actuated) {
		return
	}
	e.actuated = &next
	a.actuated.later(uid)
}

// Actuating notes that the pod's worker begins to carry out the resources that this version of the pod has.
func (a *Allocation) Actuating(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pods[p.UID]
	if !e.grants(p) {
		return
	}
	e.began = time.Now()
	if e.progress == nil {
		a.setProgress(e, newCondition(v1.PodResizeInProgress, nil, "", "", p.Generation))
	}
}

// Completed notes that the pod has the resources of this version of it. If nothing else was granted since, the resize
// that was in progress is complete.
func (a *Allocation) Completed(p *v1.Pod) {
	a.mu.Lock()
	e := a.pods[p.UID]
	if !e.grants(p) {
		a.mu.Unlock()
		return
	}
	a.metrics.observe(e, true)
	done := e.progress
	a.setProgress(e, nil)
	a.mu.Unlock()
	if done != nil {
		a.o.Events.Event(reference(p), v1.EventTypeNormal, reasonResizeCompleted,
			message("completed", p, done.ObservedGeneration, ""))
	}
}

// Failed notes why the pod could not be given the resources of this version of it. The worker tries again.
func (a *Allocation) Failed(p *v1.Pod, why error) {
	a.mu.Lock()
	e := a.pods[p.UID]
	if !e.grants(p) {
		a.mu.Unlock()
		return
	}
	a.metrics.observe(e, false)
	before, generation := e.progress, p.Generation
	if before != nil {
		generation = before.ObservedGeneration
	}
	a.setProgress(e, newCondition(v1.PodResizeInProgress, before, v1.PodReasonError, why.Error(), generation))
	a.mu.Unlock()
	// The message may have a figure that changes from one attempt to the next.
	if before == nil || before.Reason != v1.PodReasonError {
		a.o.Events.Event(reference(p), v1.EventTypeWarning, reasonResizeError, message("error", p, generation, why.Error()))
	}
}

// grants reports whether a version of the pod has the resources that are granted now.
func (e *entry) grants(p *v1.Pod) bool {
	return e != nil && !e.ended && e.granted != nil && e.granted.Equal(pod.ResourcesOf(p))
}
