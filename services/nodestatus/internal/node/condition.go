package node

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
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

// pressureHeld is how long a pressure that somebody reported before, such as a kubelet that ran here,
// still counts; evictionPressureTransitionPeriod's default.
const pressureHeld = 5 * time.Minute

// The pressure conditions, and what each is about.
var pressures = []struct {
	condition v1.NodeConditionType
	of        string
}{
	{v1.NodeMemoryPressure, "memory"},
	{v1.NodeDiskPressure, "disk"},
	{v1.NodePIDPressure, "PID"},
}

// setPressure says of each pressure that it is unknown: False would claim that somebody measures it.
// The control plane taints a node for a pressure that is True only, so that Unknown blocks no pod.
// What was reported before holds for pressureHeld, with the heartbeat time of that report.
func setPressure(n *v1.Node, now time.Time) {
	stamp := metav1.NewTime(now)
	for _, p := range pressures {
		c := Condition(n, p.condition)
		if c == nil {
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: p.condition})
			c = Condition(n, p.condition)
		}
		if (c.Status == v1.ConditionTrue || c.Status == v1.ConditionFalse) &&
			now.Sub(c.LastHeartbeatTime.Time) < pressureHeld {
			continue
		}
		if c.Status != v1.ConditionUnknown || c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = stamp
		}
		c.Status = v1.ConditionUnknown
		c.Reason = "NoEvictor"
		c.Message = fmt.Sprintf("no evictor reports %s pressure on this node", p.of)
		c.LastHeartbeatTime = stamp
	}
}
