package admission

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Attributes are what a handler decides on. They are shared and must not be changed.
type Attributes struct {
	// Pod that asks for admission, or for other resources.
	Pod *v1.Pod
	// Granted is the pod with the resources that it has, if it was admitted and asks for others; nil for a pod that asks
	// for admission.
	Granted *v1.Pod
	// Others are the pods that were admitted and have not ended, oldest first, each as it
	// was admitted.
	Others []*v1.Pod
	// requests are those of each of Others, and used those of all together; nil if they were not computed.
	requests []v1.ResourceList
	used     map[v1.ResourceName]int64
	// Node as the API has it or, as long as that is not known, as this machine would
	// register it.
	Node *v1.Node
	// devices are the extended resources that are no matter of the handlers.
	devices devices
}

// Resizes reports whether the pod was admitted and asks for other resources.
func (a *Attributes) Resizes() bool { return a.Granted != nil }

// Handler has one reason to reject pods. It answers at once: what it needs to know it
// keeps, so that no pod waits for another's answer.
type Handler interface {
	Admit(ctx context.Context, a *Attributes) Result
}

// Result is a handler's answer. The zero value admits.
type Result struct {
	// Reason and Message of a rejection, as the kubelet's: tools filter on them. An empty
	// reason admits.
	Reason, Message string
	// Judged is the version of an admitted pod that was judged, of which the requests have their place. The pod may have
	// asked for more since. It is nil for a pod that has ended.
	Judged *v1.Pod
	// Preempt is what has to go before an admitted pod may start; nil: nothing.
	Preempt *Preemption
	// Resources: the rejection would not stand if pods that are being preempted were gone.
	Resources bool
	// NodeMayBeOld: the rejection rests on the node's labels alone, of which a newer
	// version may exist.
	NodeMayBeOld bool
	// Infeasible is why the node can never do a resize, in a word for metrics; empty for one that it may do later.
	Infeasible string
}

// Preemption is the end of pods in favour of a critical one.
type Preemption struct {
	Victims []*v1.Pod
	// Signal is the resource that ran out first.
	Signal v1.ResourceName
}

// Admitted reports whether the pod may run.
func (v *Result) Admitted() bool { return v.Reason == "" }

// ask asks one handler after another; the first rejection is the result.
func ask(ctx context.Context, handlers []Handler, a *Attributes) Result {
	var all Result
	for _, h := range handlers {
		one := h.Admit(ctx, a)
		if !one.Admitted() {
			return one
		}
		if one.Preempt != nil {
			all.Preempt = one.Preempt
		}
	}
	return all
}
