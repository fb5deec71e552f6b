package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// list has pairs of a resource and an amount.
func list(pairs ...string) v1.ResourceList {
	var l v1.ResourceList
	for i := 0; i < len(pairs); i += 2 {
		if l == nil {
			l = v1.ResourceList{}
		}
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func needs(requests, limits v1.ResourceList) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: requests, Limits: limits}
}

// sameAmounts compares amounts by what they say.
var sameAmounts = cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })

// TestResourcesWhileAResizeIsCarriedOut: a container that runs shows what it has, from the runtime and, where that
// reports nothing, from what was given last.
func TestResourcesWhileAResizeIsCarriedOut(t *testing.T) {
	small := needs(list("cpu", "100m", "memory", "64Mi"), list("cpu", "200m", "memory", "128Mi"))
	large := needs(list("cpu", "300m", "memory", "96Mi"), list("cpu", "400m", "memory", "192Mi"))
	smallCPU := &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 102}
	for _, test := range []struct {
		name           string
		granted, given v1.ResourceRequirements
		podLevel       *v1.ResourceRequirements
		reported       *runtimeapi.LinuxContainerResources
		want           v1.ResourceRequirements
	}{
		{"nothing of it is done, and the runtime reports nothing", large, small, nil, nil, small},
		{"nothing of it is done, and the runtime reports CPU alone", large, small, nil, smallCPU, small},
		{"the runtime has CPU already, and that is not recorded", large, small, nil,
			&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 40000, CpuShares: 307},
			needs(list("cpu", "300m", "memory", "64Mi"), list("cpu", "400m", "memory", "128Mi"))},
		{"all of it is done", large, large, nil,
			&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 40000, CpuShares: 307,
				MemoryLimitInBytes: 192 << 20}, large},
		{"the runtime has what was neither granted nor given", large, small, nil,
			&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512},
			needs(list("cpu", "500m", "memory", "64Mi"), list("cpu", "500m", "memory", "128Mi"))},
		{"limits go, and the container has them still", needs(small.Requests, nil), small, nil,
			&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 102,
				MemoryLimitInBytes: 128 << 20}, small},
		{"limits are gone", needs(small.Requests, nil), needs(small.Requests, nil), nil,
			&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: -1, CpuShares: 102},
			needs(small.Requests, nil)},
		{"a limit comes, and the container has none yet", small, needs(small.Requests, list("cpu", "200m")), nil,
			smallCPU, needs(small.Requests, list("cpu", "200m"))},
		{"limits that it has from the pod as a whole are not its own",
			needs(small.Requests, nil), small, &v1.ResourceRequirements{Limits: small.Limits}, smallCPU,
			needs(small.Requests, nil)},
		{"limits of its own within those of the pod as a whole", large, small, &v1.ResourceRequirements{Limits: large.Limits},
			nil, small},
		{"what cannot be resized stays", needs(list("ephemeral-storage", "1Gi", "cpu", "1"), nil),
			needs(list("cpu", "2"), nil), nil, nil, needs(list("ephemeral-storage", "1Gi", "cpu", "2"), nil)},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := testPod("a")
			p.Spec.Containers[0].Resources, p.Spec.Resources = test.granted, test.podLevel
			c := ctr("1", "a", running, 0)
			if test.reported != nil {
				c.Resources = &runtimeapi.ContainerResources{Linux: test.reported}
			}
			in := inputs()
			in.Actuated = &pod.Resources{Containers: map[string]v1.ResourceRequirements{"a": test.given}}
			got := Generate(p, ready(c), in).ContainerStatuses[0]
			if diff := cmp.Diff(test.want, *got.Resources, sameAmounts); diff != "" {
				t.Errorf("resources:\n%s", diff)
			}
			if diff := cmp.Diff(test.granted.Requests, got.AllocatedResources, sameAmounts); diff != "" {
				t.Errorf("allocatedResources:\n%s", diff)
			}
			c.State = dead
			got = Generate(p, ready(c), in).ContainerStatuses[0]
			if diff := cmp.Diff(test.granted, *got.Resources, sameAmounts); diff != "" {
				t.Errorf("resources of a container that has ended:\n%s", diff)
			}
		})
	}
}

func TestResourcesOfThePodAsAWhole(t *testing.T) {
	p := testPod("a", "b")
	granted, given := needs(list("cpu", "1"), list("memory", "1Gi")), needs(list("cpu", "2"), list("memory", "2Gi"))
	p.Spec.Containers[0].Resources = granted
	for _, test := range []struct {
		name               string
		podLevel           *v1.ResourceRequirements
		actuated           *pod.Resources
		wantHas, wantGrant v1.ResourceRequirements
	}{
		{"what was given is unknown", nil, nil, granted, granted},
		{"its containers", nil,
			&pod.Resources{Containers: map[string]v1.ResourceRequirements{"a": given}}, given, granted},
		{"its cgroup", &granted,
			&pod.Resources{Containers: map[string]v1.ResourceRequirements{"a": granted}, Pod: &given}, given, granted},
		{"its cgroup is unknown", &granted,
			&pod.Resources{Containers: map[string]v1.ResourceRequirements{"a": given}}, granted, granted},
	} {
		t.Run(test.name, func(t *testing.T) {
			p.Spec.Resources = test.podLevel
			in := inputs()
			in.Actuated = test.actuated
			if diff := cmp.Diff(test.wantGrant.Requests, Generate(p, ready(ctr("1", "a", dead, 0)), in).Resources.Requests,
				sameAmounts); diff != "" && test.podLevel == nil {
				t.Errorf("what an ended container was given counts:\n%s", diff)
			}
			s := Generate(p, ready(ctr("1", "a", running, 0)), in)
			if diff := cmp.Diff(test.wantHas, *s.Resources, sameAmounts); diff != "" {
				t.Errorf("resources:\n%s", diff)
			}
			if diff := cmp.Diff(test.wantGrant.Requests, s.AllocatedResources, sameAmounts); diff != "" {
				t.Errorf("allocatedResources:\n%s", diff)
			}
			in.Terminal = true
			if diff := cmp.Diff(test.wantGrant, *Generate(p, ready(), in).Resources, sameAmounts); diff != "" {
				t.Errorf("resources of a pod that has ended:\n%s", diff)
			}
			in.WithoutPodResources = true
			if s := Generate(p, ready(), in); s.Resources != nil || s.AllocatedResources != nil {
				t.Errorf("without the gate: %+v, %+v", s.Resources, s.AllocatedResources)
			}
		})
	}
}

func TestConditionsOfAResize(t *testing.T) {
	p := testPod("a")
	p.Generation = 7
	p.Status.Conditions = []v1.PodCondition{
		{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonInfeasible},
		{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue},
	}
	in := inputs()
	s := Generate(p, ready(ctr("1", "a", running, 0)), in)
	for _, over := range p.Status.Conditions {
		if podutil.Condition(s.Conditions, over.Type) != nil {
			t.Errorf("the condition %s of a resize that is over stays", over.Type)
		}
	}
	since := metav1.NewTime(in.Now.Add(-1e9)).Rfc3339Copy()
	deferred := v1.PodCondition{
		Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonDeferred, Message: "Node didn't have enough",
		ObservedGeneration: 5, LastProbeTime: since, LastTransitionTime: since,
	}
	in.Resize = []v1.PodCondition{deferred}
	s = Generate(p, ready(ctr("1", "a", running, 0)), in)
	if got := podutil.Condition(s.Conditions, v1.PodResizePending); got == nil || *got != deferred {
		t.Errorf("condition is %+v, want %+v", got, deferred)
	}
	in.Terminal = true
	for name, s := range map[string]v1.PodStatus{
		"stopped": Generate(p, ready(ctr("1", "a", dead, 0)), in),
		"ended":   Terminate(p, Generate(p, ready(ctr("1", "a", dead, 0)), in), in.Now),
	} {
		if podutil.Condition(s.Conditions, v1.PodResizePending) != nil {
			t.Errorf("a pod that is %s has conditions %+v", name, s.Conditions)
		}
	}
}
