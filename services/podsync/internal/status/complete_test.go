package status

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

func TestEphemeralContainers(t *testing.T) {
	p := testPod("a")
	for _, name := range []string{"shell", "trace"} {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
			v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: name, Image: "image-" + name}})
	}
	in := inputs()
	in.Waiting = map[string]Waiting{"shell": {"ErrImagePull", "no such image"}, "trace": {"RunContainerError", "of an older attempt"}}
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

func TestCountsAndEndsOutliveTheRuntimesMemory(t *testing.T) {
	p := testPod("a")
	ended := ctr("1", "a", dead, 3)
	ended.RestartCount = 4
	p.Status = Generate(p, ready(ended), inputs())
	// The runtime was reset: the next container begins at 0.
	s := Generate(p, ready(ctr("2", "a", running, 0)), inputs())
	got := s.ContainerStatuses[0]
	if got.RestartCount != 5 || got.LastTerminationState.Terminated == nil || got.LastTerminationState.Terminated.ExitCode != 3 {
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

func TestTerminationsAreCounted(t *testing.T) {
	m, err := NewManager(Options{Client: newServer()})
	if err != nil {
		t.Fatal(err)
	}
	p := testPod("a")
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	for range 3 { // telling it again counts nothing
		m.Set(p, Generate(p, ready(ctr("2", "a", dead, 1), ctr("1", "i", dead, 0)), inputs()))
	}
	for labels, want := range map[[3]string]float64{{"container", "1", "Error"}: 1, {"init_container", "0", "Completed"}: 1, {"container", "0", "Completed"}: 0} {
		if got := testutil.ToFloat64(m.metrics.terminated.WithLabelValues(labels[0], labels[1], labels[2])); got != want {
			t.Errorf("%v: %v, want %v", labels, got, want)
		}
	}
}

func TestStartsAreTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := NewManager(Options{Client: newServer()})
		if err != nil {
			t.Fatal(err)
		}
		p := testPod("a")
		for _, s := range []*pod.State{ready(), ready(), ready(ctr("1", "a", running, 0)), ready(ctr("1", "a", dead, 1)), ready(ctr("2", "a", running, 0))} {
			m.Set(p, Generate(p, s, inputs()))
			time.Sleep(3 * time.Second)
		}
		var told dto.Metric
		if err := m.metrics.started.Write(&told); err != nil {
			t.Fatal(err)
		}
		if h := told.GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 6 {
			t.Errorf("%d starts that took %v s together, want one of 6 s", h.GetSampleCount(), h.GetSampleSum())
		}
	})
}
