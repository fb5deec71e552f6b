package pods

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// TestOthersGetWhatAPodAsksFor, beside what it was granted, until nothing of it runs.
func TestOthersGetWhatAPodAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		small := withMemory(testPod("a"), "1Mi", "")
		small.Generation = 1
		n.apply(small)
		has := func(p *v1.Pod) string { return p.Spec.Containers[0].Resources.Requests.Memory().String() }
		if got := has(n.published.desired["a"]); got != "1Mi" {
			t.Errorf("it asks for %s, want 1Mi", got)
		}
		n.apply(withMemory(small, "2Mi", ""))
		if got := has(n.published.desired["a"]); got != "2Mi" || has(n.published.last["a"]) != "1Mi" {
			t.Errorf("it asks for %s and has %s, want 2Mi and 1Mi", got, has(n.published.last["a"]))
		}
		n.allocation.grant("a")
		n.workers.Granted("a")
		n.wait(0)
		n.apply(withMemory(withMemory(small, "2Mi", ""), "3Mi", ""))
		n.dispatcher.RemovePod("a", api)
		n.wait(time.Minute)
		if last, asked := n.published.last["a"], n.published.desired["a"]; has(last) != "2Mi" || has(asked) != "2Mi" {
			t.Errorf("a pod that has ended has %s and asks for %s", has(last), has(asked))
		}
	})
}

// TestAVersionThatNeedsWhatTheNodeLacks: its event says so, and the pod goes on.
func TestAVersionThatNeedsWhatTheNodeLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.apply(p)
		newer := p.DeepCopy()
		newer.Generation++
		newer.Annotations = map[string]string{"lacks": "Pod requires node features that are not available: X"}
		n.apply(newer)
		want := "Warning FailedNodeDeclaredFeaturesCheck Pod requires node features that are not available: X"
		if events := n.drain(); !slices.Contains(events, want) {
			t.Errorf("events are %q", events)
		}
		if len(n.workers.Pods()) != 1 {
			t.Error("the pod has ended")
		}
	})
}

// TestTheStatusShowsAResize: its conditions, and what the container has.
func TestTheStatusShowsAResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := withMemory(testPod("a"), "1Mi", "")
		n.apply(p)
		n.allocation.mu.Lock()
		n.allocation.shown["a"] = []v1.PodCondition{{
			Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonDeferred, Message: "no room"}}
		n.allocation.mu.Unlock()
		n.allocation.SetActuatedContainer("a", p.Spec.Containers[0].Name, v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("3Mi")}})
		n.workers.Granted("a")
		n.wait(time.Second)
		s := n.status("a")
		if got := s.ContainerStatuses[0]; got.Resources.Requests.Memory().String() != "3Mi" ||
			got.AllocatedResources.Memory().String() != "1Mi" {
			t.Errorf("the container has %v and was granted %v", got.Resources, got.AllocatedResources)
		}
		if c := podutil.Condition(s.Conditions, v1.PodResizePending); c == nil || c.Message != "no room" {
			t.Errorf("conditions are %+v", s.Conditions)
		}
	})
}
