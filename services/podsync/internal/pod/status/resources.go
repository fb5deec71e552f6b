package status

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	// minShares and minMilliCPULimit are the least that cgroups are given. A value at or below them
	// is reported as it was asked for, not as it was rounded up.
	minShares        = 2
	minMilliCPULimit = 10
)

// resources are those that the container has (KEP-1287). They are those of its spec, which are granted, unless the
// runtime or what was given last says otherwise of a running one.
func (g *generator) resources(spec *v1.Container, c *pod.Container) *v1.ResourceRequirements {
	r := spec.Resources.DeepCopy()
	if !c.Running() {
		return r
	}
	linux := c.Resources.GetLinux()
	var given v1.ResourceRequirements
	known := false
	if g.in.Actuated != nil {
		given, known = g.in.Actuated.Own(g.pod, spec)
	}
	for _, a := range []amount{
		{list: &r.Limits, name: v1.ResourceCPU, given: given.Limits, reported: cpuLimit(linux)},
		{list: &r.Limits, name: v1.ResourceMemory, given: given.Limits, reported: memoryLimit(linux)},
		{list: &r.Requests, name: v1.ResourceCPU, given: given.Requests, reported: cpuRequest(linux)},
		{list: &r.Requests, name: v1.ResourceMemory, given: given.Requests},
	} {
		a.settle(known)
	}
	return r
}

// amount is one resource of a running container.
type amount struct {
	// list has what is granted, and is made what the container has.
	list *v1.ResourceList
	name v1.ResourceName
	// given are the amounts of the list that the container was given last.
	given v1.ResourceList
	// reported is what the runtime reports; nil if it reports nothing.
	reported *report
}

// report is an amount that a runtime reports.
type report struct {
	has resource.Quantity
	// is reports whether an amount that was asked for becomes this one: the kernel's units are coarser.
	is func(asked *resource.Quantity) bool
}

// settle makes the list what the container has. What was given last counts only if it is known.
func (a amount) settle(known bool) {
	granted, given := (*a.list)[a.name], a.given[a.name]
	_, wasGiven := a.given[a.name]
	switch {
	case a.reported == nil && !known, a.reported != nil && a.reported.is(&granted):
	case a.reported == nil && !wasGiven:
		delete(*a.list, a.name)
	case a.reported == nil, wasGiven && a.reported.is(&given):
		a.set(given)
	case wasGiven || *a.list != nil:
		a.set(a.reported.has)
	}
}

func (a amount) set(q resource.Quantity) {
	if *a.list == nil {
		*a.list = v1.ResourceList{}
	}
	(*a.list)[a.name] = q
}

func cpuLimit(linux *runtimeapi.LinuxContainerResources) *report {
	if linux.GetCpuPeriod() <= 0 || linux.GetCpuQuota() <= 0 {
		return nil
	}
	has := linux.GetCpuQuota() * 1000 / linux.GetCpuPeriod()
	return &report{*resource.NewMilliQuantity(has, resource.DecimalSI), func(asked *resource.Quantity) bool {
		return asked.MilliValue() == has || max(asked.MilliValue(), has) <= minMilliCPULimit
	}}
}

func memoryLimit(linux *runtimeapi.LinuxContainerResources) *report {
	has := linux.GetMemoryLimitInBytes()
	if has <= 0 {
		return nil
	}
	return &report{*resource.NewQuantity(has, resource.BinarySI), func(asked *resource.Quantity) bool {
		return asked.Value() == has
	}}
}

func cpuRequest(linux *runtimeapi.LinuxContainerResources) *report {
	shares := linux.GetCpuShares()
	if shares < minShares {
		return nil
	}
	has := (shares*1000 + 1023) / 1024
	return &report{*resource.NewMilliQuantity(has, resource.DecimalSI), func(asked *resource.Quantity) bool {
		milli := asked.MilliValue()
		return max(milli*1024/1000, minShares) == shares || max(milli, has) <= minShares
	}}
}

// podResources are those that the pod as a whole has: what its containers that run and its cgroup were given last, or
// else what is granted.
func (g *generator) podResources() *v1.ResourceRequirements {
	p := g.pod
	if given := g.in.Actuated; given != nil && !g.in.Terminal {
		has := *p
		if given.Pod != nil {
			has.Spec.Resources = given.Pod
		}
		has.Spec.Containers = g.withGiven(p.Spec.Containers)
		has.Spec.InitContainers = g.withGiven(p.Spec.InitContainers)
		p = &has
	}
	r := &v1.ResourceRequirements{
		Requests: resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}),
		Limits:   resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{}),
	}
	if p.Spec.Resources != nil {
		r.Claims = slices.Clone(p.Spec.Resources.Claims)
	}
	return r
}

// withGiven returns containers with the resources that those which run were given last.
func (g *generator) withGiven(containers []v1.Container) []v1.Container {
	if g.st == nil {
		return containers
	}
	containers = slices.Clone(containers)
	for i := range containers {
		c := &containers[i]
		if newest := g.st.Latest(c.Name); newest == nil || !newest.Running() {
			continue
		}
		if own, known := g.in.Actuated.Own(g.pod, c); known {
			c.Resources = own
		}
	}
	return containers
}

// bareID cuts the runtime's name off a container id of the API.
func bareID(id string) string {
	if _, bare, found := strings.Cut(id, "://"); found {
		return bare
	}
	return id
}
