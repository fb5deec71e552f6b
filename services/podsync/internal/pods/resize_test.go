package pods

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// withMemory returns a version of the pod whose container has so much memory.
func withMemory(p *v1.Pod, request, limit string) *v1.Pod {
	p = p.DeepCopy()
	p.Generation++
	r := &p.Spec.Containers[0].Resources
	r.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(request)}
	r.Limits = nil
	if limit != "" {
		r.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(limit)}
	}
	return p
}

func (n *node) resources() []v1.ResourceRequirements {
	var all []v1.ResourceRequirements
	for _, p := range n.workers.Pods() {
		all = append(all, p.Spec.Containers[0].Resources)
	}
	return all
}

// TestAPodKeepsWhatItWasGranted until the node grants what a newer version of it asks for.
func TestAPodKeepsWhatItWasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		small := withMemory(testPod("a"), "1Mi", "")
		small.Generation = 1
		n.apply(small)
		large := withMemory(small, "1Ti", "2Ti")
		n.apply(large)
		again := large.DeepCopy()
		again.Labels = map[string]string{"v": "2"}
		n.apply(again)
		has := func() string {
			published := n.published.last["a"].Spec.Containers[0].Resources.Requests.Memory().String()
			return n.resources()[0].Requests.Memory().String() + " " + published
		}
		if got := has(); got != "1Mi 1Mi" {
			t.Errorf("before the grant the pod has %s", got)
		}
		n.allocation.grant("a")
		n.workers.Granted("a")
		n.wait(0)
		if got := has(); got != "1Ti 1Ti" {
			t.Errorf("the pod was granted 1Ti and has %s", got)
		}
		if got := n.status("a").ContainerStatuses[0].AllocatedResources.Memory().String(); got != "1Ti" {
			t.Errorf("the status shows %s", got)
		}
		n.workers.Granted("unknown")
	})
}

// TestAVersionThatComesWithTheAdmission: the pod is admitted with the resources that were judged, whatever it asks for
// meanwhile.
func TestAVersionThatComesWithTheAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		small := withMemory(testPod("a"), "1Mi", "")
		n.admission.before = func(p *v1.Pod) {
			if p.Spec.Containers[0].Resources.Requests.Memory().String() == "1Mi" {
				n.dispatcher.SetPod(withMemory(small, "1Ti", ""), api)
				n.wait(time.Millisecond)
			}
		}
		defer n.run()()
		n.apply(small)
		if got := n.resources()[0].Requests.Memory().String(); got != "1Mi" {
			t.Errorf("the pod was admitted with 1Mi and has %s", got)
		}
	})
}

// TestAResizeIsOneSync: a version that is nothing but other resources is synced when they were decided upon.
func TestAResizeIsOneSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		small := withMemory(testPod("a"), "1Mi", "")
		small.Generation = 1
		n.apply(small)
		n.allocation.decides = true
		before := n.sets("a")
		large := withMemory(small, "2Mi", "")
		n.apply(large)
		if got := n.sets("a") - before; got != 0 {
			t.Errorf("the resize was synced %d times before it was decided upon", got)
		}
		n.allocation.grant("a")
		n.workers.Granted("a")
		n.wait(time.Second)
		if got := n.sets("a") - before; got != 1 {
			t.Errorf("the resize was synced %d times, want 1", got)
		}
		labelled := withMemory(large, "3Mi", "")
		labelled.Labels = map[string]string{"v": "2"}
		before = n.sets("a")
		n.apply(labelled)
		if got := n.sets("a") - before; got != 1 {
			t.Errorf("a resize with other labels was synced %d times at once, want 1", got)
		}
		n.apply(deleted(labelled, 1))
		n.wait(2 * time.Second)
		if !n.allocation.ended["a"] {
			t.Error("the end of the pod is not known")
		}
	})
}

// TestAVersionThatWasNotJudged gets what the version before it was admitted with.
func TestAVersionThatWasNotJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		small := withMemory(testPod("a"), "1Mi", "1Mi")
		n.admission.judged = small
		defer n.run()()
		n.apply(withMemory(small, "1Ti", "1Ti"))
		n.wait(time.Second)
		if got := n.resources()[0].Requests.Memory().String(); got != "1Mi" {
			t.Errorf("the pod was admitted with 1Mi and has %s", got)
		}
		state, err := n.dispatcher.deps.Runtime.State(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if c := state.Latest("c"); c == nil || c.Resources.GetLinux().GetMemoryLimitInBytes() != 1<<20 {
			t.Errorf("its container is %+v", c)
		}
	})
}

// TestVolumesShowWhatIsGranted at once: those of the downward API may have the resources.
func TestVolumesShowWhatIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := withMemory(testPod("a"), "1Mi", "")
		p.Spec.Volumes = []v1.Volume{{Name: "resources"}}
		n.apply(p)
		n.apply(withMemory(p, "2Mi", ""))
		before := n.refreshes()
		n.allocation.grant("a")
		n.workers.Granted("a")
		n.wait(time.Second)
		if got := n.refreshes() - before; got != 1 {
			t.Errorf("the volumes were refreshed %d times, want 1", got)
		}
	})
}
