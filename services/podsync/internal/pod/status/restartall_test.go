package status

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
)

// TestRestartingAll follows a pod from the exit that asks for it to its new start.
func TestRestartingAll(t *testing.T) {
	p := testPod("a", "b")
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	podtest.SetRestartRule(&p.Spec.Containers[0], v1.ContainerRestartRuleActionRestartAllContainers, 42)
	const running, dead = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	in := inputs()

	before := Generate(p, ready(ctr("1", "a", running, 0), ctr("2", "b", running, 0)), in)
	is(t, before, v1.AllContainersRestarting, v1.ConditionFalse, "", "")

	in.Old = &before
	begun := Generate(p, ready(ctr("1", "a", dead, 42), ctr("2", "b", running, 0)), in)
	is(t, begun, v1.AllContainersRestarting, v1.ConditionTrue, "RestartAllContainersStarted",
		"container exited with restart policy rule")

	in.Old = &begun
	removed := Generate(p, ready(), in)
	is(t, removed, v1.AllContainersRestarting, v1.ConditionFalse, "", "")
	if removed.Phase != v1.PodRunning {
		t.Errorf("phase %s: the pod has not ended", removed.Phase)
	}
	for _, c := range removed.ContainerStatuses {
		last := c.LastTerminationState.Terminated
		if c.State.Waiting == nil || c.State.Waiting.Reason != "RestartingAllContainers" || c.RestartCount != 1 ||
			last == nil || last.ExitCode != 137 {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}

	in.Old = &removed
	again := ctr("3", "a", running, 0)
	again.RestartCount = 1
	after := Generate(p, ready(again, ctr("4", "b", running, 0)), in)
	if c := podutil.ContainerStatus(after.ContainerStatuses, "a"); c.State.Running == nil || c.RestartCount != 1 ||
		c.LastTerminationState.Terminated.Reason != "RestartingAllContainers" {
		t.Errorf("%+v", c)
	}
}
