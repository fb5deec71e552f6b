package admission

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Resizing is a resize that fits, before it is granted. The pod has its place for it, and keeps the place of what it
// has. Grant ends that.
type Resizing struct {
	admitter *Admitter
	entry    *entry
	pod      *v1.Pod
	preempt  *Preemption
}

// Resize judges a version of an admitted pod with other resources, against all pods that were admitted but itself. A
// pod that fits gets a Resizing, which must be granted. One that gets neither that nor a rejection is to ask again when
// another Resizing has ended, or when it was admitted.
func (a *Admitter) Resize(ctx context.Context, p *v1.Pod) (*Resizing, Result, error) {
	if err := a.askWhatRuns(ctx); err != nil {
		return nil, Result{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.decideAll(ctx)
	e := a.pods[p.UID]
	if e == nil || e.stage != admitted || e.held != nil {
		return nil, Result{}, nil
	}
	judge := func(count func(*entry) *v1.Pod) Result {
		attributes := a.attributesOf(p, without(all, e), count)
		attributes.Granted = e.pod
		return ask(ctx, a.o.Resizes, attributes)
	}
	v := judge((*entry).most)
	if !v.Admitted() {
		if a.mayFit(&v, judge) {
			return nil, Result{}, nil
		}
		return nil, v, nil
	}
	e.held = spanOf(e.pod, p)
	a.resizing++
	if v.Preempt != nil {
		a.preempting++
	}
	return &Resizing{admitter: a, entry: e, pod: p, preempt: v.Preempt}, Result{}, nil
}

// Grant ends the pods that have to make room, has the grant recorded, and then makes it count. It reports whether it
// does: not if it cannot be recorded, nor if the pod has ended meanwhile. No lock is held while others are waited for.
func (r *Resizing) Grant(ctx context.Context, record func() error) (granted bool, err error) {
	a := r.admitter
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if granted = granted && a.pods[r.pod.UID] == r.entry && r.entry.stage == admitted; granted {
			r.entry.pod = r.pod
		}
		r.entry.held = nil
		a.resizing--
		a.wake()
	}()
	if r.preempt != nil {
		a.preempt(ctx, r.pod, r.preempt)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	if err := record(); err != nil {
		return false, err
	}
	return true, nil
}

// mayFit reports whether a pod was rejected only because others count with the most that they may be granted. It is
// asked again when that is decided. Call with mu held.
func (a *Admitter) mayFit(v *Result, judge func(count func(*entry) *v1.Pod) Result) bool {
	if !v.Resources || a.resizing == 0 {
		return false
	}
	least := judge((*entry).least)
	return least.Admitted()
}

// most and least are the pod as others count it.
func (e *entry) most() *v1.Pod {
	if e.held != nil {
		return e.held.most
	}
	return e.pod
}

func (e *entry) least() *v1.Pod {
	if e.held != nil {
		return e.held.least
	}
	return e.pod
}

func without(all []*entry, one *entry) []*entry {
	rest := make([]*entry, 0, len(all))
	for _, e := range all {
		if e != one {
			rest = append(rest, e)
		}
	}
	return rest
}

// span is the least and the most that a pod takes while it is not known which of two versions holds.
type span struct{ least, most *v1.Pod }

func spanOf(old, p *v1.Pod) *span {
	requests := func(p *v1.Pod) v1.ResourceList {
		return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	}
	x, y := requests(old), requests(p)
	least, most := v1.ResourceList{}, v1.ResourceList{}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} { // these alone can be resized
		least[name], most[name] = x[name], y[name]
		if a, b := x[name], y[name]; a.Cmp(b) > 0 {
			least[name], most[name] = b, a
		}
	}
	return &span{least: withRequests(p, least), most: withRequests(p, most)}
}

// withRequests returns a version of the pod that requests these amounts.
func withRequests(p *v1.Pod, amounts v1.ResourceList) *v1.Pod {
	p = p.DeepCopy()
	if p.Spec.Resources == nil {
		p.Spec.Resources = &v1.ResourceRequirements{}
	}
	if p.Spec.Resources.Requests == nil {
		p.Spec.Resources.Requests = v1.ResourceList{}
	}
	maps.Copy(p.Spec.Resources.Requests, amounts)
	return p
}
