package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
)

// The tests' tables are read by these.
var (
	t0      = podtest.Now
	testPod = podtest.New
	ctr     = podtest.Container
	ready   = podtest.Ready
)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	dead    = runtimeapi.ContainerState_CONTAINER_EXITED
	lost    = runtimeapi.ContainerState_CONTAINER_UNKNOWN
)

func inputs() Inputs { return Inputs{Now: t0, HostIPs: []string{"192.0.2.1"}} }

func is(t *testing.T, s v1.PodStatus, kind v1.PodConditionType, status v1.ConditionStatus, reason, message string) {
	t.Helper()
	c := podutil.Condition(s.Conditions, kind)
	if c == nil {
		t.Fatalf("no condition %s", kind)
	}
	if c.Status != status || c.Reason != reason || c.Message != message {
		t.Errorf("condition %s is %s %q %q, want %s %q %q", kind, c.Status, c.Reason, c.Message, status, reason,
			message)
	}
}

func TestRunningPod(t *testing.T) {
	p := testPod("b", "a")
	s := Generate(p, ready(ctr("2", "b", running, 0), ctr("1", "a", running, 0)), inputs())
	for _, kind := range []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady,
		v1.ContainersReady, v1.PodScheduled} {
		is(t, s, kind, v1.ConditionTrue, "", "")
		if c := podutil.Condition(s.Conditions, kind); c.ObservedGeneration != 2 ||
			!c.LastTransitionTime.Equal(&metav1.Time{Time: t0}) {
			t.Errorf("condition %s: generation %d, changed %s", kind, c.ObservedGeneration, c.LastTransitionTime)
		}
	}
	if s.Phase != v1.PodRunning || s.PodIP != "10.0.0.2" || s.HostIP != "192.0.2.1" || s.ObservedGeneration != 2 ||
		!s.StartTime.Equal(&metav1.Time{Time: t0}) {
		t.Errorf("status %+v", s)
	}
	want := v1.ContainerStatus{
		Name:        "a",
		Ready:       true,
		Started:     new(true),
		Image:       "image-a",
		ImageID:     "sha256:a",
		ContainerID: "containerd://1",
		State: v1.ContainerState{
			Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(t0.Add(-time.Minute))},
		},
		Resources: &v1.ResourceRequirements{},
	}
	if diff := cmp.Diff(want, s.ContainerStatuses[0]); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	later := inputs()
	later.Now, later.Old = t0.Add(time.Hour), &s
	if diff := cmp.Diff(s, Generate(p, ready(ctr("2", "b", running, 0), ctr("1", "a", running, 0)), later)); diff != "" {
		t.Errorf("time alone changes the status:\n%s", diff)
	}
}

// outOfMemory is a container that ended well although a child of it was killed for memory.
func outOfMemory(name string) pod.Container {
	c := ctr("3", name, dead, 0)
	c.Reason = "OOMKilled"
	return c
}

// TestAnInitContainerOutOfMemoryHasFailed, whatever its exit code is.
func TestAnInitContainerOutOfMemoryHasFailed(t *testing.T) {
	for _, policy := range []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever} {
		p, in := testPod("a"), inputs()
		p.Spec.RestartPolicy = policy
		p.Spec.InitContainers = []v1.Container{{Name: "i"}}
		in.Waiting = map[string]Waiting{"i": {Reason: "CrashLoopBackOff"}}
		s := Generate(p, ready(outOfMemory("i")), in)
		c := s.InitContainerStatuses[0]
		if c.Ready || podutil.Condition(s.Conditions, v1.PodInitialized).Status != v1.ConditionFalse {
			t.Errorf("%s: initialized: %+v", policy, c)
		}
		if waits := c.State.Waiting != nil; waits != (policy != v1.RestartPolicyNever) {
			t.Errorf("%s: state %+v", policy, c.State)
		}
		if main := Terminate(p, s, t0).ContainerStatuses[0].State; main.Waiting == nil {
			t.Errorf("%s: a container that was never to start ended as %+v", policy, main)
		}
	}
}

// TestAnInitContainerOutOfMemoryRunsAgain: the API server takes an end with exit code 0 as one for good where the
// policy is OnFailure, so such an end is never the present state of what runs again.
func TestAnInitContainerOutOfMemoryRunsAgain(t *testing.T) {
	p, in := testPod("a"), inputs()
	p.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	show := func(state *pod.State) v1.ContainerStatus {
		s := Generate(p, state, in)
		in.Old = &s
		return s.InitContainerStatuses[0]
	}
	c := show(ready(outOfMemory("i")))
	if w, last := c.State.Waiting, c.LastTerminationState.Terminated; w == nil || w.Reason != "PodInitializing" ||
		last == nil || last.Reason != "OOMKilled" || last.ExitCode != 0 {
		t.Errorf("before it starts again: %+v", c)
	}
	again := ctr("4", "i", running, 0)
	again.RestartCount = 1
	c = show(ready(again, outOfMemory("i")))
	if last := c.LastTerminationState.Terminated; c.State.Running == nil || last == nil || last.Reason != "OOMKilled" {
		t.Errorf("when it runs again: %+v", c)
	}
	in.Terminal = true
	if c = show(ready(outOfMemory("i"))); c.State.Terminated == nil {
		t.Errorf("in a pod that has ended: %+v", c)
	}
	in.Terminal = false
	p.DeletionTimestamp = &metav1.Time{Time: t0}
	if c = show(ready(outOfMemory("i"))); c.State.Terminated == nil {
		t.Errorf("in a pod that is deleted: %+v", c)
	}
}

func TestPhase(t *testing.T) {
	terminal := func(in *Inputs, _ *v1.Pod) { in.Terminal = true }
	policy := func(policy v1.RestartPolicy) func(*Inputs, *v1.Pod) {
		return func(_ *Inputs, p *v1.Pod) { p.Spec.RestartPolicy = policy }
	}
	init := func(policy v1.RestartPolicy) func(*Inputs, *v1.Pod) {
		return func(_ *Inputs, p *v1.Pod) {
			p.Spec.RestartPolicy = policy
			p.Spec.InitContainers = []v1.Container{{Name: "i"}}
		}
	}
	tests := map[string]struct {
		state  *pod.State
		change func(*Inputs, *v1.Pod)
		want   v1.PodPhase
	}{
		"nothing yet":        {&pod.State{}, nil, v1.PodPending},
		"one of two":         {ready(ctr("1", "a", running, 0)), nil, v1.PodPending},
		"both run":           {ready(ctr("1", "a", running, 0), ctr("2", "b", running, 0)), nil, v1.PodRunning},
		"one ended":          {ready(ctr("1", "a", running, 0), ctr("2", "b", dead, 1)), nil, v1.PodRunning},
		"both ended, always": {ready(ctr("1", "a", dead, 0), ctr("2", "b", dead, 1)), nil, v1.PodRunning},
		"both succeeded, always, stopped for good": {ready(ctr("1", "a", dead, 0), ctr("2", "b", dead, 0)), terminal,
			v1.PodSucceeded},
		"both ended, always, stopped for good": {ready(ctr("1", "a", dead, 0), ctr("2", "b", dead, 1)), terminal,
			v1.PodFailed},
		"both succeeded, on failure": {ready(ctr("1", "a", dead, 0), ctr("2", "b", dead, 0)),
			policy(v1.RestartPolicyOnFailure), v1.PodSucceeded},
		"one failed, on failure": {ready(ctr("1", "a", dead, 0), ctr("2", "b", dead, 1)), policy(v1.RestartPolicyOnFailure),
			v1.PodRunning},
		"one failed, never": {ready(ctr("1", "a", dead, 0), ctr("2", "b", dead, 1)), policy(v1.RestartPolicyNever),
			v1.PodFailed},
		"init runs":          {ready(ctr("3", "i", running, 0)), init(v1.RestartPolicyAlways), v1.PodPending},
		"init failed":        {ready(ctr("3", "i", dead, 1)), init(v1.RestartPolicyAlways), v1.PodPending},
		"init failed, never": {ready(ctr("3", "i", dead, 1)), init(v1.RestartPolicyNever), v1.PodFailed},
		"init out of memory": {ready(outOfMemory("i")), init(v1.RestartPolicyAlways), v1.PodPending},
		"init out of memory, on failure": {ready(outOfMemory("i")), init(v1.RestartPolicyOnFailure),
			v1.PodPending},
		"init out of memory, never": {ready(outOfMemory("i")), init(v1.RestartPolicyNever), v1.PodFailed},
		"init done": {ready(ctr("3", "i", dead, 0), ctr("1", "a", running, 0), ctr("2", "b", running, 0)),
			init(v1.RestartPolicyNever), v1.PodRunning},
		"evicted": {ready(ctr("1", "a", running, 0), ctr("2", "b", running, 0)), func(in *Inputs, _ *v1.Pod) {
			in.Override = &Override{Reason: "Evicted", Message: "no room"}
		}, v1.PodFailed},
		"ended before": {ready(ctr("1", "a", running, 0), ctr("2", "b", running, 0)), func(_ *Inputs, p *v1.Pod) {
			p.Status.Phase = v1.PodSucceeded
		}, v1.PodSucceeded},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, in := testPod("a", "b"), inputs()
			if test.change != nil {
				test.change(&in, p)
			}
			s := Generate(p, test.state, in)
			if s.Phase != test.want {
				t.Errorf("phase %s, want %s", s.Phase, test.want)
			}
			if podutil.IsTerminal(s.Phase) && podutil.Condition(s.Conditions, v1.PodReady).Status != v1.ConditionFalse {
				t.Error("ready although it has ended")
			}
		})
	}
}

func TestWaiting(t *testing.T) {
	p := testPod("a")
	in := inputs()
	s := Generate(p, &pod.State{}, in)
	if w := s.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ContainerCreating" {
		t.Errorf("new container: %+v", s.ContainerStatuses[0].State)
	}
	is(t, s, v1.PodReady, v1.ConditionFalse, "ContainersNotReady", "containers with unready status: [a]")
	is(t, s, v1.PodReadyToStartContainers, v1.ConditionFalse, "PodSandboxNotReady", "no pod sandbox exists")

	in.Waiting = map[string]Waiting{"a": {"ImagePullBackOff", "no such image"}}
	s = Generate(p, ready(), in)
	if w := s.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ImagePullBackOff" ||
		w.Message != "no such image" || s.Phase != v1.PodPending {
		t.Errorf("no image: phase %s, %+v", s.Phase, s.ContainerStatuses[0].State)
	}

	in.Waiting = map[string]Waiting{"a": {"CrashLoopBackOff", "back-off"}}
	c, before := ctr("2", "a", dead, 3), ctr("1", "a", dead, 4)
	c.RestartCount = 1
	s = Generate(p, ready(c, before), in)
	got := s.ContainerStatuses[0]
	if got.State.Waiting == nil || got.State.Waiting.Reason != "CrashLoopBackOff" ||
		got.LastTerminationState.Terminated.ExitCode != 3 || got.RestartCount != 1 || s.Phase != v1.PodRunning {
		t.Errorf("crash loop: phase %s, %+v", s.Phase, got)
	}
	s = Generate(p, ready(ctr("1", "a", running, 0)), in)
	if s.ContainerStatuses[0].State.Running == nil {
		t.Error("a container that runs is shown waiting")
	}
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	s = Generate(p, ready(ctr("1", "i", running, 0)), inputs())
	if w := s.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "PodInitializing" {
		t.Errorf("while init runs: %+v", s.ContainerStatuses[0].State)
	}
	is(t, s, v1.PodInitialized, v1.ConditionFalse, "ContainersNotInitialized", "containers with incomplete status: [i]")
}

func TestReadiness(t *testing.T) {
	p := testPod("a")
	p.Spec.Containers[0].ReadinessProbe = &v1.Probe{}
	p.Spec.Containers[0].StartupProbe = &v1.Probe{}
	st := ready(ctr("1", "a", running, 0))
	show := func(in Inputs) (bool, bool) {
		s := Generate(p, st, in).ContainerStatuses[0]
		return *s.Started, s.Ready
	}
	is := func(what string, in Inputs, started, ready bool) {
		t.Helper()
		if s, r := show(in); s != started || r != ready {
			t.Errorf("%s: started %v, ready %v; want %v, %v", what, s, r, started, ready)
		}
	}
	yes, no := map[string]decide.Result{"1": decide.Success}, map[string]decide.Result{"1": decide.Failure}
	in := inputs()
	is("before any probe", in, false, false)
	in.Readiness = yes
	is("ready, but not started", in, false, false)
	in.Startup = yes
	is("both", in, true, true)
	in.Readiness = map[string]decide.Result{"0": decide.Success}
	is("a result for another id", in, true, false)

	old := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
		Name:        "a",
		ContainerID: "containerd://1",
		Started:     new(true),
		Ready:       true,
		State:       v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}}}
	p.Status = old
	is("the API's word on the same id holds", inputs(), true, true)
	in = inputs()
	in.Readiness = no
	is("until a probe says otherwise", in, true, false)
	old.ContainerStatuses[0].ContainerID = "containerd://0"
	is("not for another id", inputs(), false, false)
}

func TestUnknownIsNotFalse(t *testing.T) {
	p := testPod("a")
	p.Status = Generate(p, ready(ctr("1", "a", running, 0)), inputs())
	later := inputs()
	later.Now, later.HostIPs = t0.Add(time.Hour), nil
	if diff := cmp.Diff(p.Status, Generate(p, nil, later)); diff != "" {
		t.Errorf("a state that could not be read changes the status:\n%s", diff)
	}
	never := testPod("a")
	if s := Generate(never, nil, inputs()); s.Phase != v1.PodPending || s.ContainerStatuses[0].State.Waiting == nil {
		t.Errorf("a pod of which nothing was ever read: %+v", s)
	}
}

func TestVanished(t *testing.T) {
	p := testPod("a")
	p.Status = Generate(p, ready(ctr("1", "a", running, 0)), inputs())
	s := Generate(p, ready(), inputs())
	got := s.ContainerStatuses[0]
	if got.State.Waiting == nil || got.LastTerminationState.Terminated == nil ||
		got.LastTerminationState.Terminated.ExitCode != 137 || got.RestartCount != 1 {
		t.Errorf("a container that vanished: %+v", got)
	}
	if s.Phase != v1.PodRunning {
		t.Errorf("phase %s, want Running: it did run", s.Phase)
	}
	s = Generate(p, ready(ctr("1", "a", lost, 0)), inputs())
	if ended := s.ContainerStatuses[0].State.Terminated; ended == nil || ended.Reason != "ContainerStatusUnknown" ||
		ended.ExitCode != 137 {
		t.Errorf("a container in unknown state: %+v", s.ContainerStatuses[0].State)
	}
	in := inputs()
	in.Old = &s
	if diff := cmp.Diff(s, Generate(p, ready(ctr("1", "a", lost, 0)), in)); diff != "" {
		t.Errorf("a container in unknown state flaps:\n%s", diff)
	}
}

func TestRestartCountNeverGoesBack(t *testing.T) {
	p := testPod("a")
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a", RestartCount: 9, ContainerID: "containerd://0"}}
	if got := Generate(p, ready(ctr("1", "a", running, 0)), inputs()).ContainerStatuses[0].RestartCount; got != 9 {
		t.Errorf("restart count %d, want 9", got)
	}
}

// TestRestartCountOfALostContainer: the runtime had forgotten the instances before the one that it has lost now.
func TestRestartCountOfALostContainer(t *testing.T) {
	p := testPod("a")
	p.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name: "a", RestartCount: 3, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}}
	if got := Generate(p, ready(ctr("1", "a", lost, 0)), inputs()).ContainerStatuses[0].RestartCount; got != 4 {
		t.Errorf("restart count %d, want 4", got)
	}
}

// TestASandboxThatIsNotReadyInitializesNothing: what was made in it says nothing of its successor.
func TestASandboxThatIsNotReadyInitializesNothing(t *testing.T) {
	p := testPod("a")
	p.Spec.InitContainers = []v1.Container{{
		Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways), StartupProbe: &v1.Probe{},
	}}
	st := ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0))
	if got := Generate(p, st, inputs()).Phase; got != v1.PodRunning {
		t.Errorf("in the present sandbox: phase %s, want Running", got)
	}
	st.Sandboxes[0].Ready = false
	if got := Generate(p, st, inputs()).Phase; got != v1.PodPending {
		t.Errorf("in a sandbox that is to be replaced: phase %s, want Pending", got)
	}
}

func TestReadinessGates(t *testing.T) {
	p := testPod("a")
	p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "lb"}}
	st := ready(ctr("1", "a", running, 0))
	s := Generate(p, st, inputs())
	is(t, s, v1.ContainersReady, v1.ConditionTrue, "", "")
	is(t, s, v1.PodReady, v1.ConditionFalse, "ReadinessGatesNotReady",
		`corresponding condition of pod readiness gate "lb" does not exist.`)
	p.Status.Conditions = []v1.PodCondition{{Type: "lb", Status: v1.ConditionFalse}}
	is(t, Generate(p, st, inputs()), v1.PodReady, v1.ConditionFalse, "ReadinessGatesNotReady",
		`the status of pod readiness gate "lb" is not "True", but False`)
	p.Status.Conditions[0].Status = v1.ConditionTrue
	s = Generate(p, st, inputs())
	is(t, s, v1.PodReady, v1.ConditionTrue, "", "")
	is(t, s, "lb", v1.ConditionTrue, "", "")
}

func TestAddresses(t *testing.T) {
	p := testPod("a")
	st := ready()
	st.Sandboxes[0].IPs = []string{"fd00::2", "10.0.0.2", "10.0.0.3"}
	s := Generate(p, st, inputs())
	if diff := cmp.Diff([]v1.PodIP{{IP: "10.0.0.2"}, {IP: "fd00::2"}}, s.PodIPs); diff != "" {
		t.Error(diff)
	}
	in := inputs()
	in.HostIPs = []string{"fd00::1", "192.0.2.1"}
	if got := Generate(p, st, in).PodIP; got != "fd00::2" {
		t.Errorf("on a node whose primary family is IPv6 the pod's address is %s", got)
	}
	in.Old = &s
	st.Sandboxes[0].Ready = false
	if got := Generate(p, st, in).PodIP; got != "10.0.0.2" {
		t.Errorf("when the sandbox is gone the pod's address is %q", got)
	}
	p.Spec.HostNetwork = true
	s = Generate(p, &pod.State{}, in)
	if s.PodIP != "10.0.0.2" || s.HostIP != "fd00::1" {
		t.Errorf("addresses of a host network pod never change once set: %s", s.PodIP)
	}
	in.Old = nil
	if diff := cmp.Diff([]v1.PodIP{{IP: "fd00::1"}, {IP: "192.0.2.1"}}, Generate(p, &pod.State{}, in).PodIPs); diff != "" {
		t.Error(diff)
	}
}

func TestResources(t *testing.T) {
	p := testPod("a")
	asked := v1.ResourceList{v1.ResourceCPU: resource.MustParse("300m"), v1.ResourceMemory: resource.MustParse("64Mi")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: asked, Limits: asked}
	c := ctr("1", "a", running, 0)
	linux := &runtimeapi.LinuxContainerResources{
		CpuPeriod:          100000,
		CpuQuota:           30000,
		CpuShares:          307,
		MemoryLimitInBytes: 64 << 20,
	}
	c.Resources = &runtimeapi.ContainerResources{Linux: linux}
	c.User = &runtimeapi.ContainerUser{
		Linux: &runtimeapi.LinuxContainerUser{Uid: 5, Gid: 6, SupplementalGroups: []int64{6}},
	}
	p.Status.QOSClass = ""
	s := Generate(p, ready(c), inputs())
	got := s.ContainerStatuses[0]
	if diff := cmp.Diff(p.Spec.Containers[0].Resources, *got.Resources); diff != "" {
		t.Errorf("resources differ by rounding:\n%s", diff)
	}
	if got.AllocatedResources.Cpu().MilliValue() != 300 || got.User.Linux.UID != 5 ||
		s.QOSClass != v1.PodQOSGuaranteed || s.Resources.Limits.Cpu().MilliValue() != 300 {
		t.Errorf("container %+v, class %s, pod %+v", got, s.QOSClass, s.Resources)
	}
	linux.CpuQuota, linux.MemoryLimitInBytes, linux.CpuShares = 50000, 32<<20, 512
	r := Generate(p, ready(c), inputs()).ContainerStatuses[0].Resources
	if r.Limits.Cpu().MilliValue() != 500 || r.Limits.Memory().Value() != 32<<20 ||
		r.Requests.Cpu().MilliValue() != 500 {
		t.Errorf("what the container really has is not reported: %+v", r)
	}
}

func TestRejected(t *testing.T) {
	s := Rejected(testPod("a"), "OutOfcpu", "too much", inputs())
	if s.Phase != v1.PodFailed || s.Reason != "OutOfcpu" || s.Message != "Pod was rejected: too much" ||
		len(s.ContainerStatuses) != 0 {
		t.Errorf("status %+v", s)
	}
	if len(s.Conditions) != 0 || s.StartTime == nil || s.QOSClass == "" || s.HostIP != "" {
		t.Errorf("status %+v", s)
	}
}

func TestTerminate(t *testing.T) {
	p := testPod("a", "b")
	s := Generate(p, ready(ctr("1", "a", dead, 0)), inputs())
	final := Terminate(p, s, t0)
	if final.Phase != v1.PodFailed || final.ContainerStatuses[0].State.Terminated.ExitCode != 0 ||
		final.ContainerStatuses[1].State.Terminated.ExitCode != 137 {
		t.Errorf("a container of which nothing is known: %+v", final)
	}
	in := inputs()
	in.Terminal = true
	s = Generate(p, ready(ctr("1", "a", dead, 0), ctr("2", "b", dead, 0)), in)
	if final = Terminate(p, s, t0); final.Phase != v1.PodSucceeded {
		t.Errorf("phase %s, want Succeeded", final.Phase)
	}
	p.Spec.InitContainers = []v1.Container{{Name: "i"}, {Name: "j"}}
	final = Terminate(p, Generate(p, ready(ctr("1", "i", running, 0)), inputs()), t0)
	if final.InitContainerStatuses[0].State.Terminated == nil || final.InitContainerStatuses[1].State.Waiting == nil ||
		final.ContainerStatuses[0].State.Waiting == nil {
		t.Errorf("what was never attempted is shown as failed: %+v", final)
	}
}

func TestMessagesAreCutAtACharacter(t *testing.T) {
	p := testPod("a")
	c := ctr("1", "a", dead, 1)
	c.Message = "x" + strings.Repeat("é", maxMessages)
	got := Generate(p, ready(c), inputs()).ContainerStatuses[0].State.Terminated.Message
	if len(got) > maxMessages || len(got) < maxMessages-1 || strings.ToValidUTF8(got, "") != got {
		t.Errorf("message of %d bytes, valid UTF-8: %v", len(got), strings.ToValidUTF8(got, "") == got)
	}
}

// TestWaitingMessagesAreCut: one message may take what the kubelet gives to all termination messages, and those of many
// containers fit into what the API server takes.
func TestWaitingMessagesAreCut(t *testing.T) {
	for containers, want := range map[int]int{1: maxWaiting, 5: maxWaiting, 256: 1 << 10} {
		names, in := make([]string, containers), inputs()
		in.Waiting = map[string]Waiting{}
		for i := range names {
			names[i] = fmt.Sprint("c", i)
			in.Waiting[names[i]] = Waiting{Reason: "CreateContainerError", Message: strings.Repeat("é", maxWaiting)}
		}
		s := Generate(testPod(names...), ready(), in)
		if len(s.ContainerStatuses) != containers {
			t.Fatalf("%d containers, want %d", len(s.ContainerStatuses), containers)
		}
		for _, c := range s.ContainerStatuses {
			if c.State.Waiting == nil || c.State.Waiting.Message != strings.Repeat("é", want/2) {
				t.Fatalf("%d containers: %s waits with %+.100v, want a message of %d bytes", containers, c.Name, c.State, want)
			}
		}
	}
}

// Devices show on containers, not on init containers, and only those that are asked for. What is not known stays.
func TestDevices(t *testing.T) {
	gpu := v1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "i", Resources: v1.ResourceRequirements{Limits: gpu}}},
		Containers:     []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Limits: gpu}}},
	}}
	has := func(name v1.ResourceName) v1.ResourceStatus {
		return v1.ResourceStatus{Name: name, Resources: []v1.ResourceHealth{{ResourceID: "0", Health: "Healthy"}}}
	}
	in := Inputs{Now: time.Now(), Devices: map[string][]v1.ResourceStatus{
		"c": {has("example.com/gpu"), has("example.com/other")}, "i": {has("example.com/gpu")},
	}}
	s := Generate(p, &pod.State{}, in)
	got := s.ContainerStatuses[0].AllocatedResourcesStatus
	if len(got) != 1 || got[0].Name != "example.com/gpu" || s.InitContainerStatuses[0].AllocatedResourcesStatus != nil {
		t.Errorf("shows %v, init %v", got, s.InitContainerStatuses[0].AllocatedResourcesStatus)
	}
	in.Old, in.Devices = &s, nil
	if again := Generate(p, &pod.State{}, in); len(again.ContainerStatuses[0].AllocatedResourcesStatus) != 1 {
		t.Error("what is not known does not stay")
	}
	in.Devices = map[string][]v1.ResourceStatus{}
	if again := Generate(p, &pod.State{}, in); len(again.ContainerStatuses[0].AllocatedResourcesStatus) != 0 {
		t.Error("a container shows devices that it has not")
	}
}
