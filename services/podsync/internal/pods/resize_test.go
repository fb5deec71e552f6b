package pods

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

func countEvents(events []string, part string) (count int) {
	for _, e := range events {
		if strings.Contains(e, part) {
			count++
		}
	}
	return count
}

// TestAPodKeepsTheResourcesThatItWasAdmittedWith: those that a resize asks for were not admitted.
func TestAPodKeepsTheResourcesThatItWasAdmittedWith(t *testing.T) {
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
		want := []v1.ResourceRequirements{small.Spec.Containers[0].Resources}
		if diff := cmp.Diff(want, n.resources()); diff != "" {
			t.Error(diff)
		}
		if got := countEvents(n.drain(), reasonResizeInfeasible); got != 1 {
			t.Errorf("%d events say that the resize is refused, want 1", got)
		}
		n.apply(withMemory(again, "2Ti", "2Ti"))
		if got := countEvents(n.drain(), reasonResizeInfeasible); got != 1 {
			t.Errorf("%d events say that the second resize is refused, want 1", got)
		}
		status := n.status("a").ContainerStatuses[0]
		if got := status.AllocatedResources.Memory().String(); got != "1Mi" {
			t.Errorf("the status shows %s", got)
		}

		// What the status shows is what the next podsync goes by.
		again.Status = n.status("a")
		next := newNode(t, n.cri)
		defer next.run()()
		next.apply(again)
		if diff := cmp.Diff(want, next.resources(), cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestResourcesThatAStatusShows(t *testing.T) {
	memory := func(amount string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: resource.MustParse(amount)}
	}
	wants := withMemory(testPod("a"), "2Gi", "4Gi")
	for name, test := range map[string]struct {
		status v1.ContainerStatus
		want   v1.ResourceRequirements
	}{
		"none of its container": {v1.ContainerStatus{}, wants.Spec.Containers[0].Resources},
		"a container that waits": {
			v1.ContainerStatus{Name: "c", AllocatedResources: memory("1Gi")}, wants.Spec.Containers[0].Resources,
		},
		"a container that runs": {
			v1.ContainerStatus{
				Name: "c", ContainerID: "x://1", AllocatedResources: memory("1Gi"),
				Resources: &v1.ResourceRequirements{Limits: memory("3Gi"), Requests: memory("1Gi")},
			}, v1.ResourceRequirements{Requests: memory("1Gi"), Limits: memory("3Gi")},
		},
		"a limit that was added": {
			v1.ContainerStatus{
				Name: "c", ContainerID: "x://1", AllocatedResources: memory("1Gi"), Resources: &v1.ResourceRequirements{},
			}, v1.ResourceRequirements{Requests: memory("1Gi"), Limits: v1.ResourceList{}},
		},
		"no resources": {v1.ContainerStatus{Name: "c", ContainerID: "x://1"}, wants.Spec.Containers[0].Resources},
	} {
		p := wants.DeepCopy()
		p.Status.ContainerStatuses = []v1.ContainerStatus{test.status}
		if diff := cmp.Diff(test.want, withReportedResources(p).Spec.Containers[0].Resources); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	p := wants.DeepCopy()
	p.Spec.Resources = &v1.ResourceRequirements{Requests: memory("2Gi"), Limits: memory("4Gi")}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", ContainerID: "x://1"}}
	p.Status.AllocatedResources = memory("1Gi")
	p.Status.Resources = &v1.ResourceRequirements{Limits: memory("3Gi")}
	if diff := cmp.Diff(v1.ResourceRequirements{Requests: memory("1Gi"), Limits: memory("3Gi")},
		*withReportedResources(p).Spec.Resources); diff != "" {
		t.Error(diff)
	}
}
