package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/microlet/microlet/services/internal/pressure"
)

// Condition returns the Node's condition of a type, nil if it has none.
func Condition(n *v1.Node, t v1.NodeConditionType) *v1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// IsReady reports whether the Node is said to be ready.
func IsReady(n *v1.Node) bool {
	c := Condition(n, v1.NodeReady)
	return c != nil && c.Status == v1.ConditionTrue
}

// setReady decides on the Ready condition, and puts it last.
func (s Settings) setReady(n *v1.Node, o Observed, now time.Time) []Event {
	problems := slices.Clone(o.Problems)
	if err := s.missingCapacity(n); err != nil {
		problems = append(problems, err)
	}
	stamp := metav1.NewTime(now)
	c := v1.NodeCondition{
		Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: stamp, LastTransitionTime: stamp,
		Reason: "KubeletReady", Message: "kubelet is posting ready status",
	}
	if err := utilerrors.NewAggregate(problems); err != nil {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "KubeletNotReady", err.Error()
	}
	if o.Warning != "" {
		c.Message += ". WARNING: " + o.Warning
	}
	var events []Event
	if old := Condition(n, v1.NodeReady); old != nil {
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		} else {
			reason := "NodeNotReady"
			if c.Status == v1.ConditionTrue {
				reason = "NodeReady"
			}
			events = append(events, s.StatusEvent(reason))
		}
	}
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions,
		func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
	n.Status.Conditions = append(n.Status.Conditions, c)
	return events
}

// StatusEvent is the kubelet's Event about a change of the node's state.
func (s Settings) StatusEvent(reason string) Event {
	return Event{v1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", s.Name, reason)}
}

// maxProblem bounds what a condition's message quotes, in bytes.
const maxProblem = 1024

// cut returns the beginning of a text, without a part of a character.
func cut(text string) string {
	if len(text) <= maxProblem {
		return text
	}
	return strings.ToValidUTF8(text[:maxProblem], "") + "…"
}

// pressures are the pressure conditions, and the kubelet's words for them.
var pressures = []struct {
	condition           v1.NodeConditionType
	of                  string
	present, none       string // reasons; the Event's begins with "Node"
	presentMsg, noneMsg string
}{
	{v1.NodeMemoryPressure, "memory", "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
		"kubelet has insufficient memory available", "kubelet has sufficient memory available"},
	{v1.NodeDiskPressure, "disk", "KubeletHasDiskPressure", "KubeletHasNoDiskPressure",
		"kubelet has disk pressure", "kubelet has no disk pressure"},
	{v1.NodePIDPressure, "PID", "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
		"kubelet has insufficient PID available", "kubelet has sufficient PID available"},
}

// setPressure takes over the pressure conditions that evictor reports, as of when it reported them. A condition that is
// not reported, or that cannot be measured, is unknown after pressure.Held: False would claim that it is measured. The
// control plane taints a node for a pressure that is True only, so that Unknown blocks no pod. What was reported
// before, such as by a kubelet that ran here, holds until then, with the heartbeat time of that report.
func (s Settings) setPressure(n *v1.Node, states []pressure.State, now time.Time) (events []Event) {
	for _, p := range pressures {
		c := Condition(n, p.condition)
		if c == nil {
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: p.condition})
			c = Condition(n, p.condition)
		}
		status, seen := v1.ConditionUnknown, now
		reason, message := "NoEvictor", fmt.Sprintf("no evictor reports %s pressure on this node", p.of)
		for _, state := range states {
			if state.Type == p.condition {
				status, seen = state.Status, now.Add(-state.Age)
				reason, message = "SignalsUnreadable", "evictor cannot measure it: "+cut(state.Problem)
			}
		}
		switch status {
		case v1.ConditionTrue:
			reason, message = p.present, p.presentMsg
		case v1.ConditionFalse:
			reason, message = p.none, p.noneMsg
		default:
			if known := c.Status == v1.ConditionTrue || c.Status == v1.ConditionFalse; known &&
				now.Sub(c.LastHeartbeatTime.Time) < pressure.Held {
				continue
			}
		}
		if c.Status != status || c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = metav1.NewTime(now)
			if status != v1.ConditionUnknown {
				events = append(events, s.StatusEvent("Node"+strings.TrimPrefix(reason, "Kubelet")))
			}
		}
		c.Status, c.Reason, c.Message, c.LastHeartbeatTime = status, reason, message, metav1.NewTime(seen)
	}
	return events
}
