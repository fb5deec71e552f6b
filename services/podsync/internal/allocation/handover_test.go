package allocation

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// TestAFileThatLacksAPart is one of a kubelet without the feature gates of some resizes, or one that was damaged. What
// it does not have is no resize.
func TestAFileThatLacksAPart(t *testing.T) {
	whole := &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}
	p := testPod("a", "1")
	p.Spec.InitContainers = []v1.Container{{Name: "i", Resources: *whole.DeepCopy()}}
	p.Spec.Resources = whole
	all := func(change func(pod.Resources)) pod.Resources {
		r := pod.Resources{Containers: map[string]v1.ResourceRequirements{}, Pod: whole.DeepCopy()}
		for name, of := range pod.ResourcesOf(p).Containers {
			r.Containers[name] = of
		}
		change(r)
		return r
	}
	for name, file := range map[string]pod.Resources{
		"no init containers":  all(func(r pod.Resources) { delete(r.Containers, "i") }),
		"no containers":       {Pod: whole.DeepCopy()},
		"no pod level":        {Containers: pod.ResourcesOf(p).Containers},
		"nothing":             {},
		"a foreign container": all(func(r pod.Resources) { r.Containers["x"] = *whole.DeepCopy() }),
	} {
		synctest.Test(t, func(t *testing.T) {
			granted := newDisk()
			granted.pods["a"] = file
			n := newNode(t, granted, newDisk())
			defer n.stop()
			close(n.synced)
			n.infeasible = true
			n.admit(p)
			if got := n.Apply(p); got != p {
				t.Errorf("%s: the pod has %+v", name, pod.ResourcesOf(got))
			}
			n.wantShown("a")
			if got := n.reasons(); len(got) > 0 {
				t.Errorf("%s: events %v", name, got)
			}
		})
	}
}

// TestPodLevelResourcesThatWereNotGranted are not taken from the spec after a restart: the file of a node agent that
// resizes them lacks them because the pod has none yet.
func TestPodLevelResourcesThatWereNotGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		granted := newDisk()
		p := testPod("a", "1")
		granted.pods["a"] = pod.ResourcesOf(p)
		p.Status.AllocatedResources = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("9")}}
		n := newNode(t, granted, newDisk())
		defer n.stop()
		close(n.synced)
		n.admit(p)
		if got := n.Apply(p).Spec.Resources; got != nil {
			t.Errorf("the pod has %+v", got)
		}
		n.wantShown("a", "PodResizePending Deferred 1")
	})
}
