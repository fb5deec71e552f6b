package pods

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
)

func TestAPodIsReadyAsSoonAsItsGateOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "lb"}}
		n.apply(p)
		for _, step := range []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse} {
			p = p.DeepCopy()
			p.Status.Conditions = []v1.PodCondition{{Type: "lb", Status: step}}
			n.apply(p)
			status, _ := n.Last("a")
			if got := conditionStatus(&v1.Pod{Status: status}, v1.PodReady); got != step {
				t.Fatalf("the gate is %s and Ready is %q", step, got)
			}
		}
	})
}
