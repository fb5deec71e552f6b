package resizing

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// None is a quota or a memory limit of a cgroup that has no such limit.
const None = -1

// Amounts are what a cgroup has of CPU and memory.
type Amounts struct {
	// Shares of CPU time; 0 where they are not known, as with cgroup v2, which has a weight that each runtime computes in
	// its own way, or where any are right.
	Shares int64
	// Quota of CPU time in microseconds of 100 ms, and the limit of memory in bytes.
	Quota, Memory int64
}

// String names the amounts.
func (a Amounts) String() string {
	return fmt.Sprintf("%d shares, quota %d, memory %d", a.Shares, a.Quota, a.Memory)
}

// Problem says in what got is not what is wanted; "" if it is. A limit of memory is in whole pages with cgroup v1.
func (a Amounts) Problem(got Amounts) string {
	if got.Shares != 0 && a.Shares != 0 && a.Shares != got.Shares || a.Quota != got.Quota || a.Memory != got.Memory {
		return fmt.Sprintf("it has %s, want %s", got, a)
	}
	return ""
}

// page is what cgroup v1 rounds a memory limit down to.
const page = 4096

// amounts converts a request and limits as the kubelet does. 0 is none.
func amounts(request, cpu, memory int64) Amounts {
	a := Amounts{Shares: max(2, request*1024/1000), Quota: None, Memory: None}
	if cpu > 0 {
		a.Quota = max(1000, cpu*100)
	}
	if memory > 0 {
		a.Memory = memory / page * page
	}
	return a
}

// OfContainer is what the cgroup of a container of p has when the resources of the spec are in force. A container
// without a limit has that of its pod. Of one that has nothing else of CPU the kubelet derives the shares from that
// limit when it starts, and gives it the least when it is resized.
func OfContainer(p *corev1.Pod, c *corev1.Container) Amounts {
	cpu, memory := c.Resources.Limits.Cpu(), c.Resources.Limits.Memory()
	if of := p.Spec.Resources; of != nil {
		if cpu.IsZero() {
			cpu = of.Limits.Cpu()
		}
		if memory.IsZero() {
			memory = of.Limits.Memory()
		}
	}
	request := c.Resources.Requests.Cpu()
	if _, has := c.Resources.Requests[corev1.ResourceCPU]; !has {
		request = c.Resources.Limits.Cpu()
	}
	a := amounts(request.MilliValue(), cpu.MilliValue(), memory.Value())
	if request.IsZero() && !cpu.IsZero() {
		a.Shares = 0
	}
	return a
}

// OfPod is what the pod's own cgroup has when the resources of the spec are in force.
func OfPod(p *corev1.Pod) Amounts {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	limit := func(name corev1.ResourceName) int64 {
		q := limits[name]
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if own := list[i].Resources.Limits[name]; own.IsZero() && !hasPodLimit(p, name) {
					return 0 // one container has no limit, so the pod has none
				}
			}
		}
		if name == corev1.ResourceCPU {
			return q.MilliValue()
		}
		return q.Value()
	}
	return amounts(requests.Cpu().MilliValue(), limit(corev1.ResourceCPU), limit(corev1.ResourceMemory))
}

func hasPodLimit(p *corev1.Pod, name corev1.ResourceName) bool {
	if p.Spec.Resources == nil {
		return false
	}
	q := p.Spec.Resources.Limits[name]
	return !q.IsZero()
}

// Folders are those of one cgroup: the same with cgroup v2.
type Folders struct {
	CPU, Memory string
	Unified     bool
}

// FoldersOf finds the cgroup of a process by its file /proc/<pid>/cgroup. root is where the hierarchies are mounted.
func FoldersOf(root, cgroup string, unified bool) Folders {
	paths := map[string]string{}
	for line := range strings.Lines(cgroup) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			paths[controller] = fields[2]
		}
	}
	if unified {
		at := path.Join(root, paths[""])
		return Folders{CPU: at, Memory: at, Unified: true}
	}
	return Folders{CPU: path.Join(root, "cpu", paths["cpu"]), Memory: path.Join(root, "memory", paths["memory"])}
}

// Parent is the cgroup above.
func (f Folders) Parent() Folders {
	return Folders{CPU: path.Dir(f.CPU), Memory: path.Dir(f.Memory), Unified: f.Unified}
}

// Read reads the amounts of the cgroup.
func (f Folders) Read(readFile func(path string) ([]byte, error)) (a Amounts, err error) {
	number := func(folder, file string, field int) int64 {
		out, readErr := readFile(path.Join(folder, file))
		fields := strings.Fields(string(out))
		switch {
		case err != nil:
			return 0
		case readErr != nil:
			err = fmt.Errorf("read a cgroup: %w", readErr)
			return 0
		case len(fields) <= field:
			err = fmt.Errorf("read a cgroup: %s is %q", path.Join(folder, file), out)
			return 0
		case fields[field] == "max":
			return None
		}
		n, parseErr := strconv.ParseInt(fields[field], 10, 64)
		if parseErr != nil {
			err = fmt.Errorf("read a cgroup: %s is %q", path.Join(folder, file), out)
		}
		return n
	}
	if f.Unified {
		a = Amounts{Quota: number(f.CPU, "cpu.max", 0), Memory: number(f.Memory, "memory.max", 0)}
	} else {
		a = Amounts{
			Shares: number(f.CPU, "cpu.shares", 0), Quota: number(f.CPU, "cpu.cfs_quota_us", 0),
			Memory: number(f.Memory, "memory.limit_in_bytes", 0),
		}
	}
	if a.Memory > 1<<60 { // how cgroup v1 says that there is no limit
		a.Memory = None
	}
	return a, err
}
