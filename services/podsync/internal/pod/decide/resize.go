package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// ResizeRetry is when a resize that was refused is looked at again: the memory that is in its way may be free by then.
const ResizeRetry = 10 * time.Second

// Resizing is what a pod has whose granted resources may not all be in force.
type Resizing struct {
	// Actuated are the resources that containers were given last, with the limits of the pod as a whole where they have
	// none. A container that is not in it is not resized.
	Actuated pod.Resources
	// Cgroup is nil for a pod without one. Its containers are resized all the same.
	Cgroup *pod.Cgroup
}

// ResizePart is what a step writes to the pod's cgroup.
type ResizePart int8

const (
	// PartLimit is the limit of a resource: the CFS quota, and the memory limit with memory.high.
	PartLimit ResizePart = iota
	// PartRequest is the request of a resource: the CPU shares, and the protected memory.
	PartRequest
)

// ResizeStep is one write of a resize. After each of them, no container's limit is above that of its pod's cgroup, and
// no request of the pod is above its limit, provided that it was so before.
type ResizeStep struct {
	// Resource is CPU or memory; empty for a container that gets both at once.
	Resource v1.ResourceName
	// Phase counts what is resized one after the other. What containers were given in a phase is in force when its last
	// step is done.
	Phase int
	// ID and Name are those of the container; empty for the pod's cgroup.
	ID, Name string
	// Resources are those of the container after the step.
	Resources v1.ResourceRequirements
	// Part is what is written to the pod's cgroup. Before and After are all of its limits.
	Part          ResizePart
	Before, After pod.CgroupLimits
}

// OfPod reports whether the step writes to the pod's cgroup.
func (s *ResizeStep) OfPod() bool { return s.ID == "" }

// amounts are what a container has of the two resources that can be resized, CPU in thousandths and memory in bytes.
type amounts struct{ cpu, memory span }

type span struct{ request, limit int64 }

func amountsOf(podLevel *v1.ResourceRequirements, r v1.ResourceRequirements) amounts {
	r = pod.Effective(podLevel, r)
	a := amounts{
		cpu:    span{r.Requests.Cpu().MilliValue(), r.Limits.Cpu().MilliValue()},
		memory: span{r.Requests.Memory().Value(), r.Limits.Memory().Value()},
	}
	for _, limit := range []*int64{&a.cpu.limit, &a.memory.limit} {
		if *limit == 0 {
			*limit = pod.Unlimited
		}
	}
	return a
}

func (a amounts) of(name v1.ResourceName) span {
	switch name {
	case v1.ResourceCPU:
		return a.cpu
	case v1.ResourceMemory:
		return a.memory
	default: // nothing else can be resized
		return span{}
	}
}

// InForce reports whether a pod has what was granted to it, as far as its containers' and pod-level resources tell.
func InForce(p *v1.Pod, actuated pod.Resources) bool {
	for c := range podutil.Containers(&p.Spec) {
		r, known := actuated.Containers[c.Name]
		if !known || amountsOf(nil, r) != amountsOf(p.Spec.Resources, c.Resources) {
			return false
		}
	}
	whole := func(r *v1.ResourceRequirements) amounts {
		if r == nil {
			r = &v1.ResourceRequirements{}
		}
		return amountsOf(nil, *r)
	}
	return whole(p.Spec.Resources) == whole(actuated.Pod)
}

// resized is a container that runs with other resources than were granted.
type resized struct {
	spec       *v1.Container
	id         string
	actuated   v1.ResourceRequirements
	has, wants amounts
}

// growth orders the change of one resource: below 0 if it shrinks. The limit decides, and the request if it stays.
func (c *resized) growth(name v1.ResourceName) int {
	has, wants := c.has.of(name), c.wants.of(name)
	return cmp.Or(cmp.Compare(wants.limit, has.limit), cmp.Compare(wants.request, has.request))
}

// resized returns how a container is to be resized; nil if it is not.
func (r *round) resized(spec *v1.Container, c *pod.Container) *resized {
	if r.in.Resizing == nil || c == nil || !c.Running() {
		return nil
	}
	actuated, known := r.in.Resizing.Actuated.Containers[spec.Name]
	has, wants := amountsOf(nil, actuated), amountsOf(r.in.Pod.Spec.Resources, spec.Resources)
	if !known || has == wants {
		return nil
	}
	return &resized{spec: spec, id: c.ID, actuated: actuated, has: has, wants: wants}
}

// resizeRestarts reports whether the container has to restart, by its policy, to get what was granted.
func (r *round) resizeRestarts(spec *v1.Container, c *pod.Container) bool {
	change := r.resized(spec, c)
	return change != nil && slices.ContainsFunc(spec.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
		return p.RestartPolicy == v1.RestartContainer && change.has.of(p.ResourceName) != change.wants.of(p.ResourceName)
	})
}

func resizeMessage(name string) string {
	return fmt.Sprintf("Container %s resize requires restart", name)
}

// resize plans what is left to do for the granted resources to be in force. What is to be stopped is not resized: it
// starts with what was granted.
func (r *round) resize() {
	in := r.in.Resizing
	if in == nil {
		return
	}
	plan := resizePlan{}
	stops := map[string]bool{}
	for i := range r.actions.Kill {
		stops[r.actions.Kill[i].ID] = true
	}
	for spec := range podutil.Containers(&r.in.Pod.Spec) {
		change := r.resized(spec, r.active(spec.Name))
		switch {
		case change == nil || stops[change.id]:
		case r.resizeRestarts(spec, r.active(spec.Name)) && podutil.IsSidecar(spec): // once it has started
			plan.waits = true
		default:
			plan.containers = append(plan.containers, *change)
		}
	}
	if in.Cgroup != nil {
		plan.pod, plan.wants = &in.Cgroup.Has, in.Cgroup.Wants
		r.actions.ResizeRefused = refusal(in.Cgroup, plan.containers, stops)
	}
	if held := r.actions.ResizeRefused != ""; held || !plan.together() {
		plan.order(v1.ResourceMemory, held)
		plan.phase++
		plan.order(v1.ResourceCPU, false)
	}
	r.actions.Resize = plan.steps
	if r.actions.ResizeRefused != "" {
		r.wakeAt(r.in.Now.Add(ResizeRetry))
	}
	restarts := slices.ContainsFunc(r.actions.Kill, func(k Kill) bool { return k.Reason == KillResize })
	r.actions.Resized = len(plan.steps) == 0 && r.actions.ResizeRefused == "" && !restarts && !plan.waits
}

// refusal is why memory cannot shrink now; empty if it can. A limit that is below what is used would have the kernel
// kill, or refuse. What is to be stopped counts no more.
func refusal(c *pod.Cgroup, containers []resized, stops map[string]bool) string {
	var reasons []string
	used := c.Memory
	for id := range stops {
		used -= c.Containers[id]
	}
	if limit := c.Wants.MemoryLimit; limit < c.Has.MemoryLimit && used >= limit {
		reasons = append(reasons,
			fmt.Sprintf("attempting to set pod memory limit (%d) below current usage (%d)", limit, used))
	}
	for i := range containers {
		change := &containers[i]
		limit := change.wants.memory.limit
		if limit >= change.has.memory.limit {
			continue
		}
		// A container whose cgroup is not in the pod's uses no more than the pod.
		own, known := c.Containers[change.id]
		if !known {
			own = used
		}
		if own >= limit {
			reasons = append(reasons,
				fmt.Sprintf("attempting to set container %q memory limit (%d) below current usage (%d)",
					change.spec.Name, limit, own))
		}
	}
	switch len(reasons) {
	case 0:
		return ""
	case 1:
		return "cannot decrease memory limits: " + reasons[0]
	default:
		return "cannot decrease memory limits: [" + strings.Join(reasons, ", ") + "]"
	}
}

// resizePlan collects the steps of a resize.
type resizePlan struct {
	containers []resized
	// waits: a container will restart for what was granted, and has what it had until then. The pod does not shrink.
	waits bool
	// pod is what the pod's cgroup has after the steps; nil for none.
	pod   *pod.CgroupLimits
	wants pod.CgroupLimits
	phase int
	steps []ResizeStep
}

// together adds the steps of both resources if all that changes of the pod grows, or all shrinks, and a container gets
// both. Such a container gets them at once, because a call of the runtime is what takes most of the time of a resize.
// It reports whether it has added them.
func (p *resizePlan) together() bool {
	if p.waits || !slices.ContainsFunc(p.containers, func(c resized) bool {
		return c.growth(v1.ResourceMemory) != 0 && c.growth(v1.ResourceCPU) != 0
	}) {
		return false
	}
	resources := []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU}
	var directions []int
	for _, name := range resources {
		directions = append(directions, p.podGrowth(name, PartLimit), p.podGrowth(name, PartRequest))
		for i := range p.containers {
			directions = append(directions, p.containers[i].growth(name))
		}
	}
	grows, shrinks := slices.Contains(directions, 1), slices.Contains(directions, -1)
	if grows == shrinks {
		return false
	}
	if shrinks {
		p.writeContainers()
	}
	for _, name := range resources {
		parts := []ResizePart{PartLimit, PartRequest}
		if shrinks {
			slices.Reverse(parts)
		}
		for _, part := range parts {
			if p.podGrowth(name, part) != 0 {
				p.writePod(name, part)
			}
		}
	}
	if grows {
		p.writeContainers()
	}
	return true
}

// writeContainers gives each container that changes what was granted of both resources.
func (p *resizePlan) writeContainers() {
	for i := range p.containers {
		switch c := &p.containers[i]; {
		case c.growth(v1.ResourceMemory) == 0:
			p.writeContainer(c, v1.ResourceCPU)
		case c.growth(v1.ResourceCPU) == 0:
			p.writeContainer(c, v1.ResourceMemory)
		default:
			p.steps = append(p.steps, ResizeStep{
				Phase: p.phase, ID: c.id, Name: c.spec.Name, Resources: c.spec.Resources,
			})
			c.actuated = c.spec.Resources
		}
	}
}

// order adds the steps of one resource. The pod's cgroup grows before its containers, and shrinks after them; its limit
// grows before its request, and shrinks after it. Containers that shrink make room for those that grow. If the resource
// is held, the pod's limit grows all the same: containers may start with what was granted.
func (p *resizePlan) order(name v1.ResourceName, held bool) {
	limit, request := p.podGrowth(name, PartLimit), p.podGrowth(name, PartRequest)
	if limit > 0 {
		p.writePod(name, PartLimit)
	}
	if held {
		return
	}
	if request > 0 {
		p.writePod(name, PartRequest)
	}
	for _, direction := range []int{-1, 1} {
		for i := range p.containers {
			if c := &p.containers[i]; c.growth(name) == direction {
				p.writeContainer(c, name)
			}
		}
	}
	if p.waits {
		return
	}
	if request < 0 {
		p.writePod(name, PartRequest)
	}
	if limit < 0 {
		p.writePod(name, PartLimit)
	}
}

// podGrowth orders the change of a part of the pod's cgroup.
func (p *resizePlan) podGrowth(name v1.ResourceName, part ResizePart) int {
	switch {
	case p.pod == nil:
		return 0
	case name == v1.ResourceCPU && part == PartLimit:
		return cmp.Compare(p.wants.CPUQuota, p.pod.CPUQuota)
	case name == v1.ResourceCPU:
		return cmp.Compare(p.wants.CPUShares, p.pod.CPUShares)
	case part == PartLimit:
		return cmp.Or(cmp.Compare(p.wants.MemoryLimit, p.pod.MemoryLimit), cmp.Compare(p.wants.MemoryHigh, p.pod.MemoryHigh))
	default:
		return cmp.Compare(p.wants.MemoryProtected, p.pod.MemoryProtected)
	}
}

func (p *resizePlan) writePod(name v1.ResourceName, part ResizePart) {
	s := ResizeStep{Resource: name, Phase: p.phase, Part: part, Before: *p.pod, After: p.wants}
	s.After = s.on(s.Before)
	p.steps = append(p.steps, s)
	p.pod = &s.After
}

// on returns limits with those that the step writes.
func (s *ResizeStep) on(l pod.CgroupLimits) pod.CgroupLimits {
	switch {
	case s.Resource == v1.ResourceCPU && s.Part == PartLimit:
		l.CPUQuota, l.CPUPeriod = s.After.CPUQuota, s.After.CPUPeriod
	case s.Resource == v1.ResourceCPU:
		l.CPUShares = s.After.CPUShares
	case s.Part == PartLimit:
		l.MemoryLimit, l.MemoryHigh = s.After.MemoryLimit, s.After.MemoryHigh
	default:
		l.MemoryProtected = s.After.MemoryProtected
	}
	return l
}

// writeContainer gives the container what was granted of one resource. Of the other one it keeps what it has.
func (p *resizePlan) writeContainer(c *resized, name v1.ResourceName) {
	next := c.spec.Resources
	other := v1.ResourceCPU
	if name == v1.ResourceCPU {
		other = v1.ResourceMemory
	}
	if c.has.of(other) != c.wants.of(other) {
		next = pod.With(next, other, c.actuated)
	}
	p.steps = append(p.steps, ResizeStep{Resource: name, Phase: p.phase, ID: c.id, Name: c.spec.Name, Resources: next})
	c.actuated = next
}
