package decide

import (
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
