package pods

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
)

// errBusy is what a runtime answers while something else holds a mount of a dead container.
var errBusy = errors.New("failed to remove root filesystem: device or resource busy")

// obstacles are the ways in which the runtime does not remove a container.
var obstacles = map[string]func(*fake.Runtime){
	"fails": func(r *fake.Runtime) { r.Fail("RemoveContainer", errBusy) },
	"hangs": func(r *fake.Runtime) { r.Hang("RemoveContainer") },
}

// eachObstacle runs a test on a node whose runtime removes no container from the moment on that block is called.
func eachObstacle(t *testing.T, test func(t *testing.T, n *node, block func())) {
	for name, obstacle := range obstacles {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, newRuntime())
				defer n.run()()
				test(t, n, func() { obstacle(n.cri) })
			})
		})
	}
}

// state is what the runtime has of a pod.
func (n *node) state(p *v1.Pod) *pod.State {
	n.t.Helper()
	state, err := n.dispatcher.deps.Runtime.State(n.t.Context(), p.UID)
	if err != nil {
		n.t.Fatal(err)
	}
	return state
}

// alive are the IDs of the instances of a container that run.
func (n *node) alive(p *v1.Pod, name string) (ids []string) {
	n.t.Helper()
	for _, c := range n.state(p).Containers {
		if c.Name == name && c.Running() {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// crash ends the container's only instance with this exit code, and lets the node act upon it.
func (n *node) crash(p *v1.Pod, name string, code int32) {
	n.t.Helper()
	ids := n.alive(p, name)
	if len(ids) != 1 {
		n.t.Fatalf("%d instances of %s run", len(ids), name)
	}
	if err := n.cri.ExitContainer(ids[0], code); err != nil {
		n.t.Fatal(err)
	}
	n.workers.Wake(p.UID, "test")
	n.wait(time.Second)
}

// TestCrashedContainersStartAgainWhateverCannotBeRemoved: older instances stay, and no start waits for their removal.
func TestCrashedContainersStartAgainWhateverCannotBeRemoved(t *testing.T) {
	eachObstacle(t, func(t *testing.T, n *node, block func()) {
		p := testPod("a")
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "other", Image: "busybox"})
		n.apply(p)
		block()
		for crash := range 4 {
			n.crash(p, "c", 1)
			n.crash(p, "other", 1)
			n.wait(10 * time.Minute) // any back-off is over
			if len(n.alive(p, "c")) != 1 || len(n.alive(p, "other")) != 1 {
				t.Fatalf("down 10 minutes after crash %d: %+v", crash+1, n.status("a").ContainerStatuses)
			}
		}
		if got := testutil.ToFloat64(n.workers.metrics.removalFailures.WithLabelValues("container")); got == 0 {
			t.Error("failed removals are not counted")
		}
		n.cri.Fail("RemoveContainer", nil)
		n.cri.Hang("RemoveContainer")() // ends the hanging
		n.wait(10 * time.Minute)
		if got := len(n.state(p).Containers); got != 4 { // of each container the one that runs and the one before it
			t.Errorf("%d containers stay when they can be removed", got)
		}
	})
}

// TestALostSandboxIsReplacedWhateverCannotBeRemoved: dead init containers of the lost one do not hold up the next.
func TestALostSandboxIsReplacedWhateverCannotBeRemoved(t *testing.T) {
	eachObstacle(t, func(t *testing.T, n *node, block func()) {
		n.cri.SetProgram("init", fake.Program{Lifetime: 10 * time.Millisecond})
		p := testPod("a")
		p.Spec.InitContainers = []v1.Container{{Name: "init", Image: "busybox"}}
		n.apply(p)
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		block()
		for range 2 {
			lost := n.state(p).Sandboxes[0].ID
			if err := n.cri.StopSandbox(lost); err != nil {
				t.Fatal(err)
			}
			for range 3 { // for the sandbox, the end of init, and c, whose back-off is over
				n.workers.Wake("a", "test")
				n.wait(time.Minute)
			}
			if now := n.state(p).ReadySandbox(); now == nil || now.ID == lost || !n.running("a") {
				t.Fatalf("not in a new sandbox: %+v", n.status("a"))
			}
		}
		if got := n.status("a").InitContainerStatuses[0].RestartCount; got != 2 {
			t.Errorf("restart count %d of the init container, want 2", got)
		}
	})
}

// TestContainersBeginAnewWhateverCannotBeRemoved: what counts is that their old instances do not count any more.
func TestContainersBeginAnewWhateverCannotBeRemoved(t *testing.T) {
	eachObstacle(t, func(t *testing.T, n *node, block func()) {
		p := testPod("a")
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "other", Image: "busybox"})
		podtest.SetRestartRule(&p.Spec.Containers[0], v1.ContainerRestartRuleActionRestartAllContainers, 42)
		n.apply(p)
		block()
		for range 3 {
			before := n.alive(p, "other")
			n.crash(p, "c", 42)
			n.wait(time.Minute)
			now := n.alive(p, "other")
			if len(n.alive(p, "c")) != 1 || len(now) != 1 || now[0] == before[0] {
				t.Fatalf("did not begin again: %+v", n.status("a").ContainerStatuses)
			}
		}
		for _, s := range n.status("a").ContainerStatuses {
			if s.RestartCount != 3 {
				t.Errorf("restart count %d of %s, want 3", s.RestartCount, s.Name)
			}
		}
	})
}

// TestAContainerThatWasOnlyCreatedStartsWhateverCannotBeRemoved: the one that podsync made before it was restarted.
func TestAContainerThatWasOnlyCreatedStartsWhateverCannotBeRemoved(t *testing.T) {
	eachObstacle(t, func(t *testing.T, n *node, block func()) {
		p := testPod("a")
		n.apply(p)
		n.cri.Fail("StartContainer", errBusy) // and leaves it created
		n.crash(p, "c", 1)
		if state := n.state(p).Latest("c").State; state != runtimeapi.ContainerState_CONTAINER_CREATED {
			t.Fatalf("c is %v", state)
		}
		block()
		n.cri.Fail("StartContainer", nil)
		n.wait(2 * time.Minute)
		if len(n.alive(p, "c")) != 1 {
			t.Fatalf("down: %+v", n.status("a").ContainerStatuses)
		}
	})
}

// TestTwoInstancesOfAContainerNeverStay: the runtime starts the one after all whose start had failed.
func TestTwoInstancesOfAContainerNeverStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.apply(p)
		n.cri.Fail("StartContainer", errBusy)
		n.crash(p, "c", 1)
		late := n.state(p).Latest("c").ID
		n.cri.Fail("RemoveContainer", errBusy)
		n.cri.Fail("StartContainer", nil)
		n.wait(time.Minute)
		if _, err := runtimeapi.NewRuntimeServiceClient(n.cri.Conn()).StartContainer(t.Context(),
			&runtimeapi.StartContainerRequest{ContainerId: late}); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(time.Minute)
		if ids := n.alive(p, "c"); len(ids) != 1 || ids[0] == late {
			t.Fatalf("%d instances run, the late one is %s", len(ids), late)
		}
	})
}
