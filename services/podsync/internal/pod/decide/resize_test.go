package decide

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// requirements has amounts of CPU in thousandths and of memory in bytes; 0 is none.
func requirements(cpuRequest, cpuLimit, memoryRequest, memoryLimit int64) v1.ResourceRequirements {
	list := func(cpu, memory int64) v1.ResourceList {
		l := v1.ResourceList{}
		if cpu != 0 {
			l[v1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
		}
		if memory != 0 {
			l[v1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
		}
		return l
	}
	return v1.ResourceRequirements{Requests: list(cpuRequest, memoryRequest), Limits: list(cpuLimit, memoryLimit)}
}

// limitsFor are those of the cgroup of a pod: shares are the requested CPU, and the quota is the limit of it.
func limitsFor(p *v1.Pod) pod.CgroupLimits {
	l := pod.CgroupLimits{MemoryHigh: pod.Unlimited, CPUPeriod: 1000}
	for c := range podutil.Containers(&p.Spec) {
		a := amountsOf(nil, c.Resources)
		l.CPUShares += uint64(a.cpu.request)
		l.MemoryProtected += a.memory.request
		l.CPUQuota, l.MemoryLimit = plus(l.CPUQuota, a.cpu.limit), plus(l.MemoryLimit, a.memory.limit)
	}
	if whole := p.Spec.Resources; whole != nil {
		a := amountsOf(nil, *whole)
		if a.cpu.limit != pod.Unlimited {
			l.CPUQuota = a.cpu.limit
		}
		if a.memory.limit != pod.Unlimited {
			l.MemoryLimit = a.memory.limit
		}
		l.CPUShares, l.MemoryProtected = uint64(a.cpu.request), a.memory.request
	}
	return l
}

func plus(a, b int64) int64 {
	if a == pod.Unlimited || b == pod.Unlimited {
		return pod.Unlimited
	}
	return a + b
}

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

// stepsOf names the steps in their order.
func stepsOf(a Actions) (all []string) {
	for _, s := range a.Resize {
		name := s.Name
		if s.OfPod() {
			name = map[ResizePart]string{PartLimit: "pod limit", PartRequest: "pod request"}[s.Part]
		}
		all = append(all, strings.TrimSpace(name+" "+string(s.Resource)))
	}
	return all
}

func TestResizeSteps(t *testing.T) {
	for name, test := range map[string]struct {
		from, to []v1.ResourceRequirements
		want     []string
	}{
		"nothing": {
			[]v1.ResourceRequirements{requirements(1, 2, 3, 4)}, []v1.ResourceRequirements{requirements(1, 2, 3, 4)}, nil,
		},
		"growing": {
			[]v1.ResourceRequirements{requirements(1, 2, 3, 4)}, []v1.ResourceRequirements{requirements(2, 3, 4, 5)},
			[]string{"pod limit memory", "pod request memory", "pod limit cpu", "pod request cpu", "a"},
		},
		"shrinking": {
			[]v1.ResourceRequirements{requirements(2, 3, 4, 5)}, []v1.ResourceRequirements{requirements(1, 2, 3, 4)},
			[]string{"a", "pod request memory", "pod limit memory", "pod request cpu", "pod limit cpu"},
		},
		"a limit removed": {
			[]v1.ResourceRequirements{requirements(1, 2, 3, 4)}, []v1.ResourceRequirements{requirements(1, 0, 3, 0)},
			[]string{"pod limit memory", "pod limit cpu", "a"},
		},
		"a limit added": {
			[]v1.ResourceRequirements{requirements(1, 0, 3, 0)}, []v1.ResourceRequirements{requirements(1, 2, 3, 4)},
			[]string{"a", "pod limit memory", "pod limit cpu"},
		},
		"memory grows and CPU shrinks": {
			[]v1.ResourceRequirements{requirements(2, 4, 1, 2)}, []v1.ResourceRequirements{requirements(1, 2, 2, 4)},
			[]string{
				"pod limit memory", "pod request memory", "a memory", "a cpu", "pod request cpu", "pod limit cpu",
			},
		},
		"each has another resource that grows": {
			[]v1.ResourceRequirements{requirements(1, 2, 1, 2), requirements(1, 2, 1, 2)},
			[]v1.ResourceRequirements{requirements(1, 3, 1, 2), requirements(1, 2, 1, 3)},
			[]string{"pod limit memory", "b memory", "pod limit cpu", "a cpu"},
		},
		"one has both resources that shrink": {
			[]v1.ResourceRequirements{requirements(1, 3, 1, 3), requirements(1, 2, 1, 3)},
			[]v1.ResourceRequirements{requirements(1, 2, 1, 2), requirements(1, 2, 1, 2)},
			[]string{"a", "b memory", "pod limit memory", "pod limit cpu"},
		},
		"one makes room for another": {
			[]v1.ResourceRequirements{requirements(1, 2, 0, 4), requirements(1, 4, 0, 6)},
			[]v1.ResourceRequirements{requirements(1, 4, 0, 6), requirements(1, 2, 0, 4)},
			[]string{"b memory", "a memory", "b cpu", "a cpu"},
		},
		"requests alone": {
			[]v1.ResourceRequirements{requirements(1, 4, 1, 4)}, []v1.ResourceRequirements{requirements(2, 4, 2, 4)},
			[]string{"pod request memory", "pod request cpu", "a"},
		},
		"a request shrinks and a limit grows": {
			[]v1.ResourceRequirements{requirements(2, 4, 2, 4)}, []v1.ResourceRequirements{requirements(1, 5, 1, 5)},
			[]string{
				"pod limit memory", "a memory", "pod request memory", "pod limit cpu", "a cpu", "pod request cpu",
			},
		},
	} {
		p := testPod(v1.RestartPolicyAlways, []string{"a", "b"}[:len(test.from)]...)
		for i := range test.from {
			p.Spec.Containers[i].Resources = test.from[i]
		}
		m := newResizable(t, p)
		m.pod = p.DeepCopy()
		for i := range test.to {
			m.pod.Spec.Containers[i].Resources = test.to[i]
		}
		if diff := cmp.Diff(test.want, stepsOf(Decide(m.input()))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestAStepKeepsTheOtherResource: CPU stays what it was until its own step, and what is no CPU or memory stays as
// granted.
func TestAStepKeepsTheOtherResource(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a")
	p.Spec.Containers[0].Resources = requirements(1, 2, 3, 4)
	m := newResizable(t, p)
	m.pod = p.DeepCopy()
	granted := requirements(5, 0, 2, 3)
	granted.Limits["hugepages-2Mi"] = resource.MustParse("2Mi")
	m.pod.Spec.Containers[0].Resources = granted
	var got []v1.ResourceRequirements
	for _, s := range Decide(m.input()).Resize {
		if !s.OfPod() {
			got = append(got, s.Resources)
		}
	}
	first := requirements(1, 2, 2, 3)
	first.Limits["hugepages-2Mi"] = resource.MustParse("2Mi")
	if diff := cmp.Diff([]v1.ResourceRequirements{first, granted}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(granted, m.pod.Spec.Containers[0].Resources); diff != "" {
		t.Error("the plan has changed the pod:", diff)
	}
}

// TestRefusedShrink: the reasons are the kubelet's.
func TestRefusedShrink(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a", "b")
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources = requirements(1, 2, 3, 100)
	}
	for name, test := range map[string]struct {
		used map[string]int64
		pod  int64
		want string
	}{
		"room": {map[string]int64{"id-a": 49, "id-b": 3}, 99, ""},
		"the pod": {
			map[string]int64{"id-a": 1, "id-b": 1}, 150,
			"attempting to set pod memory limit (150) below current usage (150)",
		},
		"a": {
			map[string]int64{"id-a": 50, "id-b": 3}, 53,
			`attempting to set container "a" memory limit (50) below current usage (50)`,
		},
		"unknown":  {nil, 50, `attempting to set container "a" memory limit (50) below current usage (50)`},
		"no usage": {nil, 49, ""},
		"both": {
			map[string]int64{"id-a": 90, "id-b": 90}, 180,
			`[attempting to set pod memory limit (150) below current usage (180), ` +
				`attempting to set container "a" memory limit (50) below current usage (90)]`,
		},
	} {
		m := newResizable(t, p)
		m.pod = p.DeepCopy()
		m.pod.Spec.Containers[0].Resources = requirements(2, 4, 3, 50)
		in := m.input()
		in.Resizing.Cgroup.Memory, in.Resizing.Cgroup.Containers = test.pod, test.used
		a := Decide(in)
		got := strings.TrimPrefix(a.ResizeRefused, "cannot decrease memory limits: ")
		if got != test.want || (got != "") != strings.HasPrefix(a.ResizeRefused, "cannot decrease") {
			t.Errorf("%s: refused %q, want %q", name, a.ResizeRefused, test.want)
		}
		steps := []string{"a memory", "pod limit memory", "pod limit cpu", "pod request cpu", "a cpu"}
		if test.want != "" {
			steps = steps[2:]
			if !a.Wake.Equal(in.Now.Add(10 * time.Second)) {
				t.Errorf("%s: looks again at %s", name, a.Wake)
			}
		} else if !a.Wake.IsZero() {
			t.Errorf("%s: looks again at %s", name, a.Wake)
		}
		if diff := cmp.Diff(steps, stepsOf(a)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestFullMemory holds up nothing that does not shrink: neither a container that uses all that it may, nor what another
// used that is to be stopped.
func TestFullMemory(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a", "b")
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources = requirements(1, 2, 3, 100)
	}
	p.Spec.Containers[1].ResizePolicy = []v1.ContainerResizePolicy{
		{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
	}
	m := newResizable(t, p)
	m.used = map[string]int64{"id-a": 100, "id-b": 100}
	m.pod = p.DeepCopy()
	m.pod.Spec.Containers[0].Resources = requirements(2, 2, 3, 100)
	if a := Decide(m.input()); a.ResizeRefused != "" || len(a.Resize) == 0 || a.Kill != nil {
		t.Errorf("CPU alone: %+v", a)
	}
	m.pod.Spec.Containers[1].Resources = requirements(1, 2, 3, 40)
	if a := Decide(m.input()); a.ResizeRefused != "" || len(a.Kill) != 1 || a.Kill[0].Name != "b" {
		t.Errorf("what b uses counts: %+v", a)
	}
	m.pod.Spec.Containers[1].Resources = requirements(1, 2, 3, 0)
	if a := Decide(m.input()); a.ResizeRefused != "" || len(a.Kill) != 1 || a.Kill[0].Name != "b" {
		t.Errorf("no limit: %+v", a)
	}
}

// TestAPodGrowsWhenMemoryIsRefused: a container that starts may need it.
func TestAPodGrowsWhenMemoryIsRefused(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a", "b")
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources = requirements(0, 0, 3, 100)
	}
	m := newResizable(t, p)
	m.pod = p.DeepCopy()
	m.pod.Spec.Containers[0].Resources = requirements(0, 0, 3, 50)
	m.pod.Spec.Containers[1].Resources = requirements(0, 0, 4, 500)
	m.used = map[string]int64{"id-a": 60}
	m.state.Latest("b").State = dead
	delete(m.containers, "id-b")
	a := Decide(m.input())
	diff := cmp.Diff([]string{"pod limit memory"}, stepsOf(a))
	if diff != "" || a.ResizeRefused == "" || len(a.Start) != 1 {
		t.Errorf("refused %q, starts %+v: %s", a.ResizeRefused, a.Start, diff)
	}
}

// TestMemoryHighAlone follows the request without a change of the limit.
func TestMemoryHighAlone(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a")
	m := newResizable(t, p)
	in := m.input()
	for high, want := range map[int64]int{5: 1, 10: 0, 20: 1} {
		in.Resizing.Cgroup.Has.MemoryHigh, in.Resizing.Cgroup.Wants.MemoryHigh = 10, high
		a := Decide(in)
		if len(a.Resize) != want || want == 1 && a.Resize[0].After.MemoryHigh != high {
			t.Errorf("memory.high %d: %+v", high, a.Resize)
		}
	}
}

func TestWhatIsResized(t *testing.T) {
	restart := func(c v1.Container, of v1.ResourceName) v1.Container {
		c.ResizePolicy = []v1.ContainerResizePolicy{
			{ResourceName: "cpu", RestartPolicy: v1.NotRequired}, {ResourceName: "memory", RestartPolicy: v1.NotRequired},
		}
		for i := range c.ResizePolicy {
			if c.ResizePolicy[i].ResourceName == of {
				c.ResizePolicy[i].RestartPolicy = v1.RestartContainer
			}
		}
		return c
	}
	more := requirements(2, 0, 0, 0)
	sized := func(c v1.Container) v1.Container { c.Resources = more; return c }
	probed := sidecar("s")
	probed.StartupProbe = &v1.Probe{}
	for name, test := range map[string]struct {
		init, regular v1.Container
		state         *pod.State
		startup       map[string]Result
		liveness      map[string]Result
		unknown       bool
		waits         bool
		steps, kill   []string
		message       string
	}{
		"an init container that runs": {
			init: sized(plain("i")), regular: plain("a"), state: ready(ctr("1", "i", running, 0)), steps: []string{"i cpu"},
		},
		"an init container that has ended": {
			init: sized(plain("i")), regular: plain("a"), state: ready(ctr("2", "a", running, 0), ctr("1", "i", dead, 0)),
		},
		"a sidecar": {
			init: sized(sidecar("s")), regular: plain("a"),
			state: ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0)), steps: []string{"s cpu"},
		},
		"a sidecar that is not started yet": {
			init: sized(probed), regular: plain("a"), state: ready(ctr("1", "s", running, 0)), steps: []string{"s cpu"},
		},
		"a sidecar that restarts": {
			init: sized(restart(sidecar("s"), "cpu")), regular: plain("a"),
			state: ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0)), kill: []string{"1"},
			message: "Container s resize requires restart",
		},
		"a sidecar that restarts once it has started": {
			init: sized(restart(probed, "cpu")), regular: plain("a"), state: ready(ctr("1", "s", running, 0)), waits: true,
		},
		"an init container that cannot restart": {
			init: sized(restart(plain("i"), "cpu")), regular: plain("a"), state: ready(ctr("1", "i", running, 0)),
			steps: []string{"i cpu"},
		},
		"a sidecar that restarts for memory alone": {
			init: sized(restart(sidecar("s"), "memory")), regular: plain("a"),
			state: ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0)), steps: []string{"s cpu"},
		},
		"a container that restarts": {
			init: sidecar("s"), regular: sized(restart(plain("a"), "cpu")),
			state: ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0)), kill: []string{"2"},
			message: "Container a resize requires restart",
		},
		"a container that restarts for another resource": {
			init: sidecar("s"), regular: sized(restart(plain("a"), "ephemeral-storage")),
			state: ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0)), steps: []string{"a cpu"},
		},
		"a container that failed its probe": {
			init: sidecar("s"), regular: sized(restart(plain("a"), "cpu")),
			state:    ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0)),
			liveness: map[string]Result{"2": Failure}, kill: []string{"2"},
			message: "Container a failed liveness probe, will be restarted",
		},
		"a container of an earlier sandbox": {
			init: sidecar("s"), regular: sized(plain("a")),
			state: ready(pod.Container{ID: "2", Name: "a", SandboxID: "old", State: running}, ctr("1", "s", running, 0)),
		},
		"a container of which nothing is known": {
			init: sidecar("s"), regular: sized(plain("a")),
			state:   ready(ctr("2", "a", running, 0), ctr("1", "s", running, 0)),
			unknown: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := withInit(testPod(v1.RestartPolicyAlways, "a"), test.init)
			p.Spec.Containers[0] = test.regular
			in := Input{
				Pod: p, State: test.state, Now: t0, Startup: test.startup, Liveness: test.liveness, Resizing: &Resizing{},
			}
			if !test.unknown {
				none := v1.ResourceRequirements{}
				in.Resizing.Actuated.Containers = map[string]v1.ResourceRequirements{"i": none, "s": none, "a": none}
			}
			a := Decide(in)
			b := briefly(a)
			if diff := cmp.Diff([][]string{test.steps, test.kill}, [][]string{stepsOf(a), b.Kill}); diff != "" {
				t.Error(diff)
			}
			if test.message != "" && b.Messages[0] != test.message {
				t.Errorf("message %q", b.Messages[0])
			}
			if test.message != "" && (len(a.Start) != 1 || a.Start[0].Init != (a.Start[0].Name == "s")) {
				t.Errorf("starts %+v", a.Start)
			}
			resized := !test.waits && test.steps == nil && (test.kill == nil || a.Kill[0].Reason != KillResize)
			if a.Resized != resized {
				t.Errorf("resized: %v, want %v", a.Resized, resized)
			}
		})
	}
}

func TestInForce(t *testing.T) {
	p := withInit(testPod(v1.RestartPolicyAlways, "a"), sidecar("s"))
	p.Spec.Containers[0].Resources = requirements(1, 2, 3, 0)
	p.Spec.Resources = new(requirements(4, 5, 6, 7))
	has := pod.Resources{Pod: p.Spec.Resources, Containers: map[string]v1.ResourceRequirements{
		"a": requirements(1, 2, 3, 7), "s": requirements(0, 5, 0, 7),
	}}
	if !InForce(p, has) {
		t.Error("what was granted is not in force")
	}
	for name, other := range map[string]pod.Resources{
		"an unknown container": {Pod: has.Pod, Containers: map[string]v1.ResourceRequirements{"a": has.Containers["a"]}},
		"a container": {Pod: has.Pod, Containers: map[string]v1.ResourceRequirements{
			"a": has.Containers["a"], "s": requirements(0, 5, 0, 8),
		}},
		"the pod":            {Pod: new(requirements(4, 5, 6, 8)), Containers: has.Containers},
		"no pod-level ones":  {Containers: has.Containers},
		"nothing of the pod": {},
	} {
		if InForce(p, other) {
			t.Errorf("%s: what was granted is in force", name)
		}
	}
	p.Spec.Resources = nil
	if has.Pod = nil; InForce(p, has) {
		t.Error("limits that were of the pod are in force")
	}
	has.Containers = map[string]v1.ResourceRequirements{"a": requirements(1, 2, 3, 0), "s": {}}
	if !InForce(p, has) {
		t.Error("a pod without pod-level resources")
	}
}

// TestANewSandboxInAnOldCgroup has the limits of a pod set before its containers start.
func TestANewSandboxInAnOldCgroup(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a")
	p.Spec.Containers[0].Resources = requirements(1, 2, 3, 4)
	m := newResizable(t, p)
	m.pod = p.DeepCopy()
	m.pod.Spec.Containers[0].Resources = requirements(1, 8, 3, 8)
	m.state.Sandboxes[0].Ready = false
	a := Decide(m.input())
	if diff := cmp.Diff([]string{"pod limit memory", "pod limit cpu"}, stepsOf(a)); diff != "" || a.Sandbox == nil {
		t.Error(diff)
	}
	m.pod = p
	if a := Decide(m.input()); !a.Resized || a.Sandbox == nil {
		t.Errorf("%+v", a)
	}
	in := m.input()
	in.Resizing = nil
	if a := Decide(in); a.Resized || a.Resize != nil {
		t.Errorf("%+v", a)
	}
}
