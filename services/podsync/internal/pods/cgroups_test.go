package pods

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// groups are the cgroups of pods. Their shares are the CPU that the pod requests, in thousandths, and their period is a
// second.
type groups struct {
	mu   sync.Mutex
	pods map[types.UID]pod.CgroupLimits
	// memory is what a pod and its containers use.
	memory     map[types.UID]int64
	containers map[string]int64
	// reads counts the reads of cgroups that exist.
	reads int
	// unreadable and unwritable are the errors of ReadPod and of SetPod.
	unreadable, unwritable error
	// did is called after each write.
	did func(what string)
}

func newGroups() *groups {
	return &groups{
		pods: map[types.UID]pod.CgroupLimits{}, memory: map[types.UID]int64{}, containers: map[string]int64{},
		did: func(string) {},
	}
}

func cgroupLimits(p *v1.Pod) pod.CgroupLimits {
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	l := pod.CgroupLimits{
		MemoryLimit: limits.Memory().Value(), MemoryHigh: pod.Unlimited, CPUQuota: limits.Cpu().MilliValue(), CPUPeriod: 1000,
		CPUShares: uint64(requests.Cpu().MilliValue()),
	}
	for c := range podutil.Containers(&p.Spec) {
		if whole := p.Spec.Resources; whole == nil || whole.Limits.Memory().IsZero() {
			if c.Resources.Limits.Memory().IsZero() {
				l.MemoryLimit = pod.Unlimited
			}
		}
		if whole := p.Spec.Resources; whole == nil || whole.Limits.Cpu().IsZero() {
			if c.Resources.Limits.Cpu().IsZero() {
				l.CPUQuota = pod.Unlimited
			}
		}
	}
	return l
}

func (g *groups) EnsurePod(p *v1.Pod) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.pods[p.UID]; !ok {
		g.pods[p.UID] = cgroupLimits(p)
	}
	return "/kubepods/pod" + string(p.UID), nil
}

func (g *groups) RemovePod(_ context.Context, uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pods, uid)
	return nil
}

func (g *groups) ReadPod(p *v1.Pod, containers []string) (*pod.Cgroup, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	has, ok := g.pods[p.UID]
	if !ok || g.unreadable != nil {
		return nil, g.unreadable
	}
	g.reads++
	c := &pod.Cgroup{Has: has, Wants: cgroupLimits(p), Memory: g.memory[p.UID], Containers: map[string]int64{}}
	for _, id := range containers {
		c.Containers[id] = g.containers[id]
	}
	return c, nil
}

func (g *groups) SetPod(p *v1.Pod, before, after pod.CgroupLimits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.unwritable != nil:
		return g.unwritable
	case g.pods[p.UID] != before:
		return fmt.Errorf("the cgroup has %+v, not %+v", g.pods[p.UID], before)
	}
	g.pods[p.UID] = after
	g.did(fmt.Sprintf("pod memory=%s cpu=%s shares=%d", amount(after.MemoryLimit), amount(after.CPUQuota),
		after.CPUShares))
	return nil
}

func amount(n int64) string {
	if n <= 0 || n == pod.Unlimited {
		return "none"
	}
	return fmt.Sprint(n)
}

// limits are those that the pod has.
func (g *groups) limits(uid types.UID) pod.CgroupLimits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pods[uid]
}

func (g *groups) fail(read, write error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unreadable, g.unwritable = read, write
}

// use has a container of a pod use memory, and the rest of the pod another 1000.
func (g *groups) use(uid types.UID, container string, memory int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory[uid], g.containers[container] = memory+1000, memory
}

func (g *groups) readCount() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reads
}
