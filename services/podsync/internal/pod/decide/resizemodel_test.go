package decide

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// resizable is a pod that runs, with what it really has.
type resizable struct {
	t      *testing.T
	pod    *v1.Pod
	state  *pod.State
	cgroup pod.CgroupLimits
	// containers are what they have, by ID, and actuated what is known of that, by name.
	containers map[string]amounts
	actuated   map[string]v1.ResourceRequirements
	used       map[string]int64
	startup    map[string]Result
	steps      []string
}

func newResizable(t *testing.T, p *v1.Pod) *resizable {
	m := &resizable{
		t: t, pod: p, state: ready(), cgroup: limitsFor(p), containers: map[string]amounts{},
		actuated: map[string]v1.ResourceRequirements{}, used: map[string]int64{},
	}
	for c := range podutil.Containers(&p.Spec) {
		m.state.Containers = append(m.state.Containers, ctr("id-"+c.Name, c.Name, running, 0))
		m.start(c)
	}
	return m
}

func (m *resizable) start(c *v1.Container) {
	m.containers["id-"+c.Name] = amountsOf(m.pod.Spec.Resources, c.Resources)
	m.actuated[c.Name] = pod.Effective(m.pod.Spec.Resources, c.Resources)
	m.state.Latest(c.Name).State = running
}

func (m *resizable) memory() int64 {
	var sum int64
	for id, used := range m.used {
		if _, runs := m.containers[id]; runs {
			sum += used
		}
	}
	return sum
}

func (m *resizable) input() Input {
	return Input{Pod: m.pod, State: m.state, Now: t0.Add(time.Hour), Startup: m.startup, Resizing: &Resizing{
		Actuated: pod.Resources{Containers: m.actuated},
		Cgroup:   &pod.Cgroup{Has: m.cgroup, Wants: limitsFor(m.pod), Memory: m.memory(), Containers: m.used},
	}}
}

// clone is the same pod, to which something else may happen.
func (m *resizable) clone() *resizable {
	c := *m
	c.state = ready(slices.Clone(m.state.Containers)...)
	c.startup = maps.Clone(m.startup)
	c.containers, c.actuated, c.used = maps.Clone(m.containers), maps.Clone(m.actuated), maps.Clone(m.used)
	return &c
}

// forgetRequests leaves of what is known what the runtime shows, and else what was known before: a worker that ends has
// not recorded what it has just done.
func (m *resizable) forgetRequests(before map[string]v1.ResourceRequirements) {
	for name, then := range before {
		now, was := m.containers["id-"+name], amountsOf(nil, then)
		if now.cpu == was.cpu || now.memory.limit != was.memory.limit {
			continue
		}
		m.actuated[name] = pod.With(m.actuated[name], v1.ResourceMemory, then)
	}
}

func (m *resizable) stop(kills []Kill) {
	for _, k := range kills {
		if k.Reason != KillResize || !k.Restart || k.Message != "Container "+k.Name+" resize requires restart" {
			m.t.Fatalf("%s is stopped: %+v", k.Name, k)
		}
		delete(m.containers, k.ID)
		delete(m.used, k.ID)
		m.state.Latest(k.Name).State = dead
	}
}

// apply carries out a step, which must not break what holds.
func (m *resizable) apply(s ResizeStep) {
	m.steps = append(m.steps, fmt.Sprintf("%s of %q (%d)", s.Resource, s.Name, s.Part))
	if s.OfPod() {
		if s.Before != m.cgroup {
			m.t.Fatalf("a step is for a cgroup with %+v, it has %+v", s.Before, m.cgroup)
		}
		m.cgroup = s.After
	} else {
		m.containers[s.ID] = amountsOf(m.pod.Spec.Resources, s.Resources)
		m.actuated[s.Name] = pod.Effective(m.pod.Spec.Resources, s.Resources)
	}
	m.holds()
}

func (m *resizable) holds() {
	for id, c := range m.containers {
		if c.cpu.limit != pod.Unlimited && c.cpu.limit > m.cgroup.CPUQuota {
			m.t.Fatalf("after %q container %s has %d of CPU, its pod %d", m.steps, id, c.cpu.limit, m.cgroup.CPUQuota)
		}
		if c.memory.limit != pod.Unlimited && c.memory.limit > m.cgroup.MemoryLimit {
			m.t.Fatalf("after %q container %s has %d of memory, its pod %d", m.steps, id, c.memory.limit, m.cgroup.MemoryLimit)
		}
		if used := m.used[id]; used > 0 && c.memory.limit < used {
			m.t.Fatalf("after %q container %s may use %d, and uses %d", m.steps, id, c.memory.limit, used)
		}
	}
	if m.cgroup.CPUQuota != pod.Unlimited && m.cgroup.CPUShares > uint64(m.cgroup.CPUQuota) {
		m.t.Fatalf("after %q the pod requests %d of CPU, its limit is %d", m.steps, m.cgroup.CPUShares, m.cgroup.CPUQuota)
	}
	if m.cgroup.MemoryProtected > m.cgroup.MemoryLimit {
		m.t.Fatalf("after %q the pod requests %d, its limit is %d", m.steps, m.cgroup.MemoryProtected, m.cgroup.MemoryLimit)
	}
	if used := m.memory(); used > 0 && used > m.cgroup.MemoryLimit {
		m.t.Fatalf("after %q the pod may use %d, and uses %d", m.steps, m.cgroup.MemoryLimit, used)
	}
}

// settle resizes until nothing is left to do, and tries an end after each step: the next worker ends at the same.
func (m *resizable) settle(cut bool) (refused string) {
	for range 4 {
		before := maps.Clone(m.actuated)
		a := Decide(m.input())
		m.stop(a.Kill)
		for _, s := range a.Resize {
			if cut {
				next := m.clone()
				next.forgetRequests(before)
				next.settle(false)
				next.hasStarted()
				next.settle(false)
				next.isAtRest(a.ResizeRefused)
			}
			m.apply(s)
		}
		for _, s := range a.Start {
			m.start(s.Spec)
			m.holds()
		}
		if len(a.Kill)+len(a.Resize)+len(a.Start) == 0 {
			if waits := m.waits(); a.Resized != (a.ResizeRefused == "" && !waits) {
				m.t.Fatalf("resized: %v, refused: %q", a.Resized, a.ResizeRefused)
			}
			return a.ResizeRefused
		}
		if a.Resized {
			m.t.Fatalf("resized before %+v", a)
		}
	}
	m.t.Fatalf("no end after %q", m.steps)
	return ""
}

// hasStarted ends the start of the sidecar.
func (m *resizable) hasStarted() { m.startup = map[string]Result{"id-s": Success} }

// waits reports whether the sidecar is to restart once it has started.
func (m *resizable) waits() bool {
	s := podutil.Container(&m.pod.Spec, "s")
	if s == nil || s.StartupProbe == nil || m.startup["id-s"] == Success {
		return false
	}
	has, wants := m.containers["id-s"], amountsOf(m.pod.Spec.Resources, s.Resources)
	return slices.ContainsFunc(s.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
		return has.of(p.ResourceName) != wants.of(p.ResourceName)
	})
}

// isAtRest holds what the pod has against what was granted. Memory stays if its shrinking was refused.
func (m *resizable) isAtRest(refused string) {
	m.t.Helper()
	want := limitsFor(m.pod)
	if refused == "" && m.cgroup != want {
		m.t.Fatalf("after %q the pod has %+v, want %+v", m.steps, m.cgroup, want)
	}
	if m.cgroup.CPUQuota != want.CPUQuota || m.cgroup.CPUShares != want.CPUShares {
		m.t.Fatalf("CPU waits for memory: after %q the pod has %+v, want %+v", m.steps, m.cgroup, want)
	}
	for c := range podutil.Containers(&m.pod.Spec) {
		has, wants := m.containers["id-"+c.Name], amountsOf(m.pod.Spec.Resources, c.Resources)
		if has.cpu != wants.cpu || refused == "" && has != wants {
			m.t.Fatalf("after %q container %s has %+v, want %+v", m.steps, c.Name, has, wants)
		}
	}
}

// anyResources gives the pod valid amounts.
func anyResources(r *rand.Rand, p *v1.Pod) *v1.Pod {
	p = p.DeepCopy()
	pair := func(most int64) (request, limit int64) {
		if r.IntN(4) > 0 {
			limit = 1 + r.Int64N(most)
		}
		if r.IntN(4) > 0 {
			request = 1 + r.Int64N(most)
			if limit > 0 {
				request = min(request, limit)
			}
		}
		return request, limit
	}
	whole := p.Spec.Resources
	var sum [4]int64
	for c := range podutil.Containers(&p.Spec) {
		cpuRequest, cpuLimit := pair(8)
		memoryRequest, memoryLimit := pair(8)
		c.Resources = requirements(cpuRequest, cpuLimit, memoryRequest, memoryLimit)
		all := []int64{cpuRequest, max(cpuLimit, cpuRequest), memoryRequest, max(memoryLimit, memoryRequest)}
		for i, amount := range all {
			sum[i] += amount
		}
	}
	if whole != nil {
		limit := func(request, least int64) int64 { return max(request, least) + r.Int64N(4) + 1 }
		cpu, memory := sum[0]+r.Int64N(3), sum[2]+r.Int64N(3)
		p.Spec.Resources = new(requirements(cpu, limit(cpu, sum[1]), memory, limit(memory, sum[3])))
	}
	return p
}

// anyPod is a pod with a sidecar and two containers, some of which restart to be resized.
func anyPod(r *rand.Rand) *v1.Pod {
	p := withInit(testPod(v1.RestartPolicyAlways, "a", "b"), sidecar("s"))
	if r.IntN(2) == 0 {
		p.Spec.Resources = &v1.ResourceRequirements{}
	}
	if r.IntN(3) == 0 {
		p.Spec.InitContainers[0].StartupProbe = &v1.Probe{}
	}
	for c := range podutil.Containers(&p.Spec) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			if r.IntN(4) == 0 {
				c.ResizePolicy = append(c.ResizePolicy,
					v1.ContainerResizePolicy{ResourceName: name, RestartPolicy: v1.RestartContainer})
			}
		}
	}
	return anyResources(r, p)
}

func resizeAnyPod(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	m := newResizable(t, anyPod(r))
	for range 4 {
		m.pod, m.steps, m.startup = anyResources(r, m.pod), nil, nil
		m.used = map[string]int64{}
		for id, has := range m.containers {
			if r.IntN(3) == 0 && has.memory.limit != pod.Unlimited {
				m.used[id] = 1 + r.Int64N(has.memory.limit)
			}
		}
		for m.memory() > m.cgroup.MemoryLimit {
			m.used = map[string]int64{}
		}
		m.holds()
		m.settle(true)
		m.hasStarted()
		refused := m.settle(true)
		m.isAtRest(refused)
		if refused == "" {
			continue
		}
		m.used = map[string]int64{}
		if again := m.settle(true); again != "" {
			t.Fatalf("refused although nothing is used: %s", again)
		}
		m.isAtRest("")
	}
}

// TestResizeInOrder holds that after each step of any resize no container has a higher limit than its pod and nothing
// may use less than it does, that the steps end at what was granted, and that they do so from each point at which they
// may break off.
func TestResizeInOrder(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { resizeAnyPod(t, seed) })
	}
}

func FuzzResize(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(resizeAnyPod)
}
