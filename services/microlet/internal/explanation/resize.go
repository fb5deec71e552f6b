package explanation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// resize is how far the pod has other resources than it asks for, and why; nil if it has those.
func (p *subject) resize() *Node {
	r := p.e.GetResize()
	if r == nil {
		return nil
	}
	n := &Node{Name: "resources", State: Waiting}
	var messages []string
	switch {
	case r.GetPendingReason() != "":
		n.Reason = r.GetPendingReason()
		messages = append(messages, r.GetPendingMessage())
		if n.Reason == v1.PodReasonInfeasible {
			n.State = Failed
		}
	case r.GetDeciding():
		n.Reason = "Deciding"
		messages = append(messages, "podsync decides whether the node has what the pod asks for")
	case slices.ContainsFunc(r.GetAmounts(), notGranted):
		n.Reason = "NotDecidedYet"
		messages = append(messages, "podsync has not decided yet whether the node has what the pod asks for")
	}
	switch {
	case r.GetError() != "":
		n.State, n.Reason = Failed, cmp.Or(n.Reason, v1.PodReasonError)
		messages = append(messages, "what was granted cannot be carried out: "+r.GetError())
	case r.GetInProgress(), n.Reason == "":
		n.Reason = cmp.Or(n.Reason, string(v1.PodResizeInProgress))
		messages = append(messages, "what was granted is being carried out")
	}
	if r.GetUnwritten() != "" {
		messages = append(messages, "the resources of pods cannot be recorded: "+r.GetUnwritten())
	}
	n.Message, n.Remedy = strings.Join(messages, "; "), remedy(n.Reason)
	for _, a := range r.GetAmounts() {
		n.Children = append(n.Children, amount(a))
	}
	return n
}

// amount is one amount that is not what the pod asks for everywhere.
func amount(a *podsyncv1.ResourceAmount) *Node {
	n := &Node{Name: strings.TrimSpace(cmp.Or(a.GetContainer(), "pod") + " " + a.GetField()), State: Waiting}
	n.Message = fmt.Sprintf("asks for %s, was granted %s", orNothing(a.GetDesired()), orNothing(a.GetAllocated()))
	if a.Actuated != nil {
		n.Message += ", has " + orNothing(a.GetActuated())
	}
	return n
}

func notGranted(a *podsyncv1.ResourceAmount) bool { return a.GetDesired() != a.GetAllocated() }

func orNothing(quantity string) string { return cmp.Or(quantity, "nothing") }
