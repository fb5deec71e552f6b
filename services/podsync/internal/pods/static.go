package pods

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
)

// held is a static pod that waits for another of its name to end. An edited manifest has another UID, and the pod of
// the earlier manifest still holds its ports and its folders. The held pod does not wait for the removal of its
// remains.
type held struct {
	pod  *v1.Pod
	from podsyncv1.PodSource
}

// heard notes that a source is synced, and reports whether that was the last one.
func (d *Dispatcher) heard(from podsyncv1.PodSource) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.workers.isSynced() {
		return false
	}
	d.unsynced = slices.DeleteFunc(slices.Clone(d.unsynced), func(s podsyncv1.PodSource) bool { return s == from })
	return len(d.unsynced) == 0
}

// Unsynced returns the sources that are not synced yet.
func (d *Dispatcher) Unsynced() []podsyncv1.PodSource {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.unsynced)
}

func fullName(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// announce announces a static pod, so that its status goes to its mirror pod.
func (d *Dispatcher) announce(p *v1.Pod, from podsyncv1.PodSource) {
	if from.Static() {
		d.deps.Statuses.Want(p)
	}
}

// hold keeps a static pod back while another of its name has a worker, and reports whether it does.
func (d *Dispatcher) hold(p *v1.Pod, from podsyncv1.PodSource) bool {
	if !from.Static() {
		return false
	}
	name := fullName(p)
	for i, h := range d.held[name] {
		if h.pod.UID == p.UID {
			d.held[name][i].pod = p
			return true
		}
	}
	if !d.runsStatic(name) {
		return false
	}
	d.log.Info("static pod waits for the end of another of its name", logkey.Pod, podName(p), logkey.PodUID, p.UID,
		logkey.Source, from.String())
	d.held[name] = append(d.held[name], held{p, from})
	return true
}

func (d *Dispatcher) runsStatic(name types.NamespacedName) bool {
	for _, w := range d.workers.all() {
		if w.source.Static() && !w.standing.isForgotten() && fullName(w.inbox.latest()) == name {
			return true
		}
	}
	return false
}

// dropHeld forgets a pod that its source no longer wants before it could begin.
func (d *Dispatcher) dropHeld(uid types.UID) {
	for name, list := range d.held {
		rest := slices.DeleteFunc(list, func(h held) bool { return h.pod.UID == uid })
		if len(rest) == len(list) {
			continue
		}
		d.deps.Statuses.Forget(uid)
		if d.held[name] = rest; len(rest) == 0 {
			delete(d.held, name)
		}
	}
}

// startHeld starts the pod that waited for the end of w's.
func (d *Dispatcher) startHeld(ctx context.Context, w *worker) {
	name := fullName(w.inbox.latest())
	list := d.held[name]
	if len(list) == 0 || d.runsStatic(name) {
		return
	}
	if d.held[name] = list[1:]; len(list) == 1 {
		delete(d.held, name)
	}
	d.start(ctx, d.newWorker(list[0].pod, list[0].from))
}

// restarts reports whether the pod's source has put it back after it was removed, and the pod goes on from what is left
// of it, as under the kubelet: restart counts and logs continue, and its mirror pod stays. A pod that has ended by
// itself, or whose restart policy does not restart all containers, starts as a new pod, as it would otherwise stay
// ended.
func (w *worker) restarts() bool {
	p := w.inbox.wantedAgain()
	if p == nil || !w.source.Static() || p.Spec.RestartPolicy != v1.RestartPolicyAlways {
		return false
	}
	last, _ := w.deps.Statuses.Last(w.uid)
	return !podutil.IsTerminal(last.Phase)
}

// supersede ends what runs of the same static pod under the UID of an earlier manifest, from before podsync's start.
func (w *worker) supersede(ctx context.Context, p *v1.Pod) error {
	if w.predecessorEnded || !w.source.Static() {
		return nil
	}
	if err := w.deps.Predecessors.End(ctx, p); err != nil {
		return transient("end the static pod's earlier version", err)
	}
	w.predecessorEnded = true
	return nil
}
