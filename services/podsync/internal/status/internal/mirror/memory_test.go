package mirror

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	podstatus "github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// onceStatic is a static pod with containers that run once.
func onceStatic() *v1.Pod {
	p := staticPod("a")
	p.Spec = v1.PodSpec{
		RestartPolicy: v1.RestartPolicyNever, HostNetwork: true, Containers: []v1.Container{{Name: "c"}},
	}
	return p
}

// lastOf is what counts as reported last of a static pod after a restart, when its mirror has that status.
func lastOf(t *testing.T, p *v1.Pod, status v1.PodStatus) v1.PodStatus {
	t.Helper()
	m, _ := newManager(t)
	old := mirrorOf("a", "node-uid")
	old.Status = status
	m.Want(p)
	m.SetMirror(old)
	last, ok := m.Last(p.UID)
	if !ok {
		t.Fatal("nothing counts as reported")
	}
	return last
}

// TestTheStatusOfAMirrorEndsNothing: what any client writes there is neither the end of a running pod nor its reason.
func TestTheStatusOfAMirrorEndsNothing(t *testing.T) {
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	yes := func(t v1.PodConditionType) []v1.PodCondition {
		return []v1.PodCondition{{Type: t, Status: v1.ConditionTrue, Reason: "R", Message: "m"}}
	}
	runs := &pod.State{
		Sandboxes:  []pod.Sandbox{{ID: "s", Ready: true, HostNetwork: true}},
		Containers: []pod.Container{{ID: "1", Name: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING, SandboxID: "s"}},
	}
	for name, status := range map[string]v1.PodStatus{
		"nothing":            {},
		"failed":             {Phase: v1.PodFailed, Reason: "Evicted", Message: "m"},
		"succeeded":          {Phase: v1.PodSucceeded},
		"a reason":           {Phase: v1.PodRunning, Reason: "NodeLost", Message: "m"},
		"an ended container": {ContainerStatuses: []v1.ContainerStatus{{Name: "c", ContainerID: "x://1", State: ended}}},
		"an earlier end":     {ContainerStatuses: []v1.ContainerStatus{{Name: "c", LastTerminationState: ended}}},
		"one that ran":       {ContainerStatuses: []v1.ContainerStatus{{Name: "c", ContainerID: "x://0", State: running}}},
		"a negative count":   {ContainerStatuses: []v1.ContainerStatus{{Name: "c", RestartCount: -5}}},
		"a disruption":       {Conditions: yes(v1.DisruptionTarget)},
		"all restart":        {Conditions: yes(v1.AllContainersRestarting)},
		"another address":    {PodIP: "192.0.2.1", PodIPs: []v1.PodIP{{IP: "192.0.2.1"}}, HostIP: "192.0.2.2"},
		"a generation":       {ObservedGeneration: 1 << 40},
	} {
		for state, st := range map[string]*pod.State{"runs": runs, "is not made yet": {}} {
			p := onceStatic()
			generate := func(old v1.PodStatus) v1.PodStatus {
				return podstatus.Generate(p, st, podstatus.Inputs{
					Old: &old, Now: time.Unix(1000, 0), HostIPs: []string{"10.0.0.1"}, RuntimeName: "x",
				})
			}
			status.StartTime = &metav1.Time{Time: time.Unix(100, 0)}
			want := generate(v1.PodStatus{StartTime: status.StartTime})
			if diff := cmp.Diff(want, generate(lastOf(t, p, status))); diff != "" {
				t.Errorf("%s, the container %s: %s", name, state, diff)
			}
		}
	}
}

// TestWhatAMirrorRemembers: only the mirror has it after a restart.
func TestWhatAMirrorRemembers(t *testing.T) {
	began := metav1.NewTime(time.Unix(100, 0))
	p := onceStatic()
	p.Spec.RestartPolicy, p.Spec.HostNetwork = v1.RestartPolicyAlways, false
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	status := v1.PodStatus{
		Phase: v1.PodRunning, StartTime: &began, PodIP: "10.1.0.2", PodIPs: []v1.PodIP{{IP: "10.1.0.2"}},
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: began}},
		ContainerStatuses: []v1.ContainerStatus{{
			Name: "c", ContainerID: "x://1", RestartCount: 3, Ready: true, Started: new(true),
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: began}},
		}},
		InitContainerStatuses: []v1.ContainerStatus{{Name: "i", ContainerID: "x://2", RestartCount: 1}},
	}
	got := lastOf(t, p, status)
	if diff := cmp.Diff(status, got); diff != "" {
		t.Error(diff)
	}
	status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", RestartCount: math.MaxInt32}, {Name: "other"}}
	if got := lastOf(t, p, status).ContainerStatuses; len(got) != 1 || got[0].RestartCount+1 < 0 {
		t.Errorf("restarts %+v", got)
	}
}

// TestAPodThatOnlyLooksLikeAMirror shows nothing, and gives way to the one that the Node owns.
func TestAPodThatOnlyLooksLikeAMirror(t *testing.T) {
	for what, change := range map[string]func(*v1.Pod){
		"without an owner":   func(p *v1.Pod) { p.OwnerReferences = nil },
		"of another kind":    func(p *v1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" },
		"of another Node":    func(p *v1.Pod) { p.OwnerReferences[0].Name = "m" },
		"of an earlier Node": func(p *v1.Pod) { p.OwnerReferences[0].UID = "old-uid" },
		"uncontrolled":       func(p *v1.Pod) { p.OwnerReferences[0].Controller = nil },
	} {
		t.Run(what, func(t *testing.T) {
			run(t, func(t *testing.T, m *Manager, c *cluster) {
				other := mirrorOf("a", "node-uid")
				change(other)
				began := metav1.Now()
				other.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &began}
				c.pods[name] = other
				m.SetMirror(other)
				m.MirrorsSynced()
				m.Want(staticPod("a"))
				m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning, StartTime: &began})
				c.want(t, "a", "mirror-1 Running")
			})
		})
	}
}

// TestAMirrorWhoseNodeIsNotKnown is not taken for another's, and what shows no static pod goes all the same.
func TestAMirrorWhoseNodeIsNotKnown(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		c.node = false
		old := mirrorOf("a", "node-uid")
		c.pods[name] = old
		m.SetMirror(old)
		m.MirrorsSynced()
		m.Want(staticPod("a"))
		m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning})
		m.AllWanted()
		c.want(t, "a", "old Running")
		m.Forget("a")
		c.want(t, "")
	})
}

// TestAManifestThatChangesWhileItsMirrorIsMade is one for the race detector.
func TestAManifestThatChangesWhileItsMirrorIsMade(t *testing.T) {
	m, c := newManager(t)
	c.down = true // so that it is tried each time
	m.MirrorsSynced()
	m.Want(staticPod("a"))
	var all sync.WaitGroup
	for _, f := range []func(){
		func() { _ = m.reconcile(t.Context(), name) },
		func() { m.Want(staticPod("a")) },
	} {
		all.Go(func() {
			for range 20_000 {
				f()
			}
		})
	}
	all.Wait()
}
