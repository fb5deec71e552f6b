package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

func TestEphemeralContainers(t *testing.T) {
	p := testPod("a")
	for _, name := range []string{"shell", "trace"} {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
			v1.EphemeralContainer{
				EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: name, Image: "image-" + name},
			})
	}
	in := inputs()
	in.Waiting = map[string]Waiting{
		"shell": {"ErrImagePull", "no such image"},
		"trace": {"RunContainerError", "of an older attempt"},
	}
	s := Generate(p, ready(ctr("2", "trace", dead, 1), ctr("1", "a", running, 0)), in)
	if len(s.EphemeralContainerStatuses) != 2 {
		t.Fatalf("statuses %+v", s.EphemeralContainerStatuses)
	}
	shell, trace := s.EphemeralContainerStatuses[0], s.EphemeralContainerStatuses[1]
	if shell.State.Waiting == nil || shell.State.Waiting.Reason != "ErrImagePull" || shell.Image != "image-shell" {
		t.Errorf("one that could not be started: %+v", shell)
	}
	if trace.State.Terminated == nil || trace.State.Terminated.ExitCode != 1 || trace.ContainerID != "containerd://2" {
		t.Errorf("one that ended, which is never started again: %+v", trace)
	}
	if shell.Started != nil || trace.Ready {
		t.Errorf("ephemeral containers are not probed: %+v %+v", shell, trace)
	}
	if s.Phase != v1.PodRunning {
		t.Errorf("phase %s: an ephemeral container says nothing about the pod", s.Phase)
	}
	is(t, s, v1.PodReady, v1.ConditionTrue, "", "")

	later := inputs()
	later.Old = &s
	held := Generate(p, nil, later)
	if diff := cmp.Diff(s.EphemeralContainerStatuses, held.EphemeralContainerStatuses); diff != "" {
		t.Errorf("a state that could not be read changes them:\n%s", diff)
	}
	gone := Generate(p, ready(ctr("1", "a", running, 0)), later)
	if got := gone.EphemeralContainerStatuses[1]; got.State.Terminated == nil {
		t.Errorf("the end of one that was collected is forgotten: %+v", got)
	}
}

// TestTheEndOfAPodEndsItsEphemeralContainers: a status with a container that runs is not reported as the last.
func TestTheEndOfAPodEndsItsEphemeralContainers(t *testing.T) {
	s := v1.PodStatus{Phase: v1.PodFailed, EphemeralContainerStatuses: []v1.ContainerStatus{
		{Name: "shell", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
		{Name: "trace", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}},
	}}
	final := Terminate(testPod("a"), s, t0).EphemeralContainerStatuses
	if ended := final[0].State.Terminated; ended == nil || ended.ExitCode != lostExitCode || final[0].Started != nil {
		t.Errorf("one that is reported to run: %+v", final[0])
	}
	if final[1].State.Waiting == nil {
		t.Errorf("one that never ran: %+v", final[1])
	}
}

func TestCountsAndEndsOutliveTheRuntimesMemory(t *testing.T) {
	p := testPod("a")
	ended := ctr("1", "a", dead, 3)
	ended.RestartCount = 4
	p.Status = Generate(p, ready(ended), inputs())
	// The runtime was reset: the next container begins at 0.
	s := Generate(p, ready(ctr("2", "a", running, 0)), inputs())
	got := s.ContainerStatuses[0]
	if got.RestartCount != 5 || got.LastTerminationState.Terminated == nil ||
		got.LastTerminationState.Terminated.ExitCode != 3 {
		t.Errorf("after the runtime forgot: %+v", got)
	}
	later := inputs()
	later.Old = &s
	if again := Generate(p, ready(ctr("2", "a", running, 0)), later).ContainerStatuses[0]; again.RestartCount != 5 {
		t.Errorf("restart count goes on to %d by itself", again.RestartCount)
	}
	// The dead one was collected while its successor runs.
	successor := ctr("3", "a", running, 0)
	successor.RestartCount = 5
	two := Generate(p, ready(successor, ended), inputs())
	later.Old = &two
	one := Generate(p, ready(successor), later)
	if diff := cmp.Diff(two.ContainerStatuses, one.ContainerStatuses); diff != "" {
		t.Errorf("collecting a dead container changes the status:\n%s", diff)
	}
}

func TestInitializedIsNotTakenBack(t *testing.T) {
	p := testPod("a")
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	s := Generate(p, ready(ctr("1", "i", running, 0)), inputs())
	is(t, s, v1.PodInitialized, v1.ConditionFalse, "ContainersNotInitialized", "containers with incomplete status: [i]")
	s = Generate(p, ready(ctr("2", "a", running, 0), ctr("1", "i", dead, 0)), inputs())
	is(t, s, v1.PodInitialized, v1.ConditionTrue, "", "")
	in := inputs()
	in.Old = &s
	again := &pod.State{Sandboxes: []pod.Sandbox{{ID: "s1", Ready: true, IPs: []string{"10.0.0.3"}}}}
	rerun := ctr("3", "i", running, 0)
	rerun.SandboxID = "s1"
	again.Containers = append(again.Containers, rerun)
	s.ContainerStatuses[0].State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reasonInitializing}}
	is(t, Generate(p, again, in), v1.PodInitialized, v1.ConditionTrue, "", "")
}

func TestAStaticPodHasNoEnd(t *testing.T) {
	p := testPod("a")
	p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	in := inputs()
	in.Terminal = true
	s := Generate(p, ready(ctr("1", "a", dead, 1)), in)
	if s.Phase != v1.PodRunning {
		t.Errorf("phase %s", s.Phase)
	}
	if final := Terminate(p, s, t0); final.Phase != v1.PodRunning {
		t.Errorf("final phase %s", final.Phase)
	}
	p.Annotations["kubernetes.io/config.source"] = "api"
	if s := Generate(p, ready(ctr("1", "a", dead, 1)), in); s.Phase != v1.PodFailed {
		t.Errorf("phase of a pod of the API: %s", s.Phase)
	}
}

// TestAnEndOutlivesAnOldReasonToWait: an init container that failed for good, and whose remains are gone, does not
// wait.
func TestAnEndOutlivesAnOldReasonToWait(t *testing.T) {
	p := testPod("a")
	p.Spec.InitContainers = []v1.Container{{Name: "i", Image: "image-i"}}
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	s := Generate(p, ready(ctr("1", "i", dead, 3)), inputs())
	in := inputs()
	in.Old, in.Waiting = &s, map[string]Waiting{"i": {"ImagePullBackOff", "of the time before"}}
	got := Generate(p, ready(), in)
	if end := got.InitContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 ||
		got.Phase != v1.PodFailed {
		t.Errorf("phase %s, init container %+v", got.Phase, got.InitContainerStatuses[0])
	}
}
