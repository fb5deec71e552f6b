package admission

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// admits admits pods that run.
func (m *machine) admits(t *testing.T, pods ...*v1.Pod) {
	t.Helper()
	for _, p := range pods {
		if v, err := m.Admit(t.Context(), p, file, true); err != nil || !v.Admitted() {
			t.Fatalf("%s: %+v, %v", p.Name, v, err)
		}
	}
}

// sized is a version of a pod that requests so much CPU.
func sized(p *v1.Pod, cpu string) *v1.Pod {
	p = p.DeepCopy()
	p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse(cpu)
	return p
}

func recorded() error { return nil }

// resize judges and grants, and returns the message of a rejection.
func (m *machine) resize(t *testing.T, p *v1.Pod) string {
	t.Helper()
	r, v, err := m.Resize(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if r == nil {
		return v.Message
	}
	if granted, err := r.Grant(t.Context(), recorded); err != nil || !granted {
		t.Errorf("%s: granted %v, %v", p.Name, granted, err)
	}
	return "granted"
}

func TestAResizeIsJudgedAgainstTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		a, b := born(requesting("a", "cpu", "1"), 0), born(requesting("b", "cpu", "500m"), 1)
		m.admits(t, a, b)
		const full = "Node didn't have enough resource: cpu, requested: 1501, used: 500, capacity: 2000 (used by b: 500)"
		if got := m.resize(t, sized(a, "1501m")); got != full {
			t.Errorf("got %q, want %q", got, full)
		}
		for _, step := range []struct {
			pod  *v1.Pod
			want string
		}{
			{sized(a, "1500m"), "granted"},
			{sized(b, "501m"), "requested: 501, used: 1500"},
			{sized(a, "100m"), "granted"},
			{sized(b, "1900m"), "granted"},
			{sized(a, "101m"), "requested: 101, used: 1900"},
		} {
			if got := m.resize(t, step.pod); !strings.Contains(got, step.want) {
				t.Errorf("%s: %q, want %q", step.pod.Name, got, step.want)
			}
		}
		if got := m.resize(t, born(requesting("unknown", "cpu", "1"), 3)); got != "" {
			t.Errorf("a pod that was not admitted: %q", got)
		}
	})
}

// TestAResizeHoldsTheLargerPlace until it is granted or given up: others get neither what it has nor what it is to get.
func TestAResizeHoldsTheLargerPlace(t *testing.T) {
	for name, test := range map[string]struct {
		to string
		// record is the outcome of the write, and free what another pod then gets and does not get.
		record     error
		free, more string
	}{
		"a growth":             {"1500m", nil, "500m", "501m"},
		"a growth, given up":   {"1500m", errors.New("full"), "1", "1001m"},
		"a decrease":           {"100m", nil, "1900m", "1901m"},
		"a decrease, given up": {"100m", errors.New("full"), "1", "1001m"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			a, b := born(requesting("a", "cpu", "1"), 0), born(requesting("b", "cpu", "0"), 1)
			m.admits(t, a, b)
			m.Heard(api)
			r, v, err := m.Resize(t.Context(), sized(a, test.to))
			if r == nil || err != nil {
				t.Fatalf("%s: %+v, %v", name, v, err)
			}
			if again, v, _ := m.Resize(t.Context(), sized(a, "1")); again != nil || !v.Admitted() {
				t.Errorf("%s: a second resize at one time: %+v", name, v)
			}
			if got := m.resize(t, sized(b, "1901m")); !strings.Contains(got, "requested: 1901") {
				t.Errorf("%s: what can never fit: %q", name, got)
			}
			may, v, _ := m.Resize(t.Context(), sized(b, "700m"))
			if test.to == "1500m" && (may != nil || !v.Admitted()) {
				t.Errorf("%s: what fits if the other is given up: %+v", name, v)
			}
			if may != nil {
				_, _ = may.Grant(t.Context(), func() error { return errors.New("not now") })
			}
			answers := &answers{got: map[string]string{}}
			m.ask(t.Context(), answers, born(requesting("comes", "cpu", "501m"), 2), api)
			if test.to == "1500m" {
				answers.want(t, map[string]string{}) // it is not rejected for what may be given up
			}
			if granted, err := r.Grant(t.Context(), func() error { return test.record }); granted != (test.record == nil) ||
				!errors.Is(err, test.record) {
				t.Errorf("%s: granted %v, %v", name, granted, err)
			}
			comes := "admitted"
			if name == "a growth" {
				comes = "OutOfcpu"
			}
			answers.want(t, map[string]string{"comes": comes})
			m.Ended("uid-comes")
			if got := m.resize(t, sized(b, test.more)); !strings.Contains(got, "enough") {
				t.Errorf("%s: %s of another: %q", name, test.more, got)
			}
			if got := m.resize(t, sized(b, test.free)); got != "granted" {
				t.Errorf("%s: %s of another: %q", name, test.free, got)
			}
		})
	}
}

// TestTwoPodsWantTheLastCPU: one gets it.
func TestTwoPodsWantTheLastCPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		a, b := born(requesting("a", "cpu", "500m"), 0), born(requesting("b", "cpu", "500m"), 1)
		m.admits(t, a, b)
		granted := make(chan string, 2)
		for _, p := range []*v1.Pod{a, b} {
			go func() {
				r, _, _ := m.Resize(t.Context(), sized(p, "1500m"))
				if r == nil {
					granted <- "no"
					return
				}
				time.Sleep(time.Second) // the disk is slow
				ok, _ := r.Grant(t.Context(), recorded)
				granted <- map[bool]string{true: "yes", false: "lost"}[ok]
			}()
		}
		if x, y := <-granted, <-granted; x+y != "noyes" {
			t.Errorf("the pods got %s and %s", x, y)
		}
	})
}

func TestACriticalPodPreemptsForItsResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		critical, other := important(born(requesting("critical", "cpu", "500m"), 0)), born(requesting("o", "cpu", "1"), 1)
		m.admits(t, critical, other)
		began := time.Now()
		r, v, err := m.Resize(t.Context(), sized(critical, "1500m"))
		if r == nil {
			t.Fatalf("%+v, %v", v, err)
		}
		if got := m.resize(t, sized(other, "1001m")); got == "granted" {
			t.Error("the victim has got more")
		}
		var free int
		record := func() error {
			m.mu.Lock()
			defer m.mu.Unlock()
			free = len(m.evicted)
			return nil
		}
		if granted, err := r.Grant(t.Context(), record); !granted || err != nil {
			t.Errorf("granted %v, %v", granted, err)
		}
		if free != 1 || time.Since(began) != m.grace {
			t.Errorf("it was recorded when %d pods had ended, after %s", free, time.Since(began))
		}
		if m.preempting != 0 || m.resizing != 0 {
			t.Errorf("%d preemptions and %d resizes are under way", m.preempting, m.resizing)
		}
	})
}

// TestAPodThatEndsDuringItsResize gets nothing, and holds nothing.
func TestAPodThatEndsDuringItsResize(t *testing.T) {
	for name, end := range map[string]func(*machine){
		"ended": func(m *machine) { m.Ended("uid-a") }, "gone": func(m *machine) { m.Forget("uid-a") },
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			a, b := born(requesting("a", "cpu", "1"), 0), born(requesting("b", "cpu", "1"), 1)
			m.admits(t, a, b)
			r, _, err := m.Resize(t.Context(), sized(a, "500m"))
			if err != nil {
				t.Fatal(err)
			}
			end(m)
			if granted, err := r.Grant(t.Context(), recorded); err != nil || granted {
				t.Errorf("%s: granted %v, %v", name, granted, err)
			}
			if got := m.resize(t, sized(b, "2")); got != "granted" {
				t.Errorf("%s: %q", name, got)
			}
		})
	}
}

func TestAResizeWhileTheRuntimeIsAway(t *testing.T) {
	m := newMachine(t)
	m.away = true
	if _, _, err := m.Resize(t.Context(), requesting("a")); err == nil {
		t.Error("it was judged")
	}
}

// TestAGrantThatPodsyncsEndInterrupts counts for nobody.
func TestAGrantThatPodsyncsEndInterrupts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		critical, other := important(born(requesting("critical", "cpu", "500m"), 0)), born(requesting("o", "cpu", "1"), 1)
		m.admits(t, critical, other)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, _, _ := m.Resize(ctx, sized(critical, "1500m"))
		if granted, err := r.Grant(ctx, recorded); granted || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("granted %v, %v", granted, err)
		}
	})
}

func TestWhoHoldsAResource(t *testing.T) {
	attributes := &Attributes{Pod: requesting("p"), Granted: requesting("p")}
	for i, name := range []string{"e", "d", "c", "b", "a", "f", "g"} {
		amount := resource.NewMilliQuantity(int64(700-100*i), resource.DecimalSI).String()
		attributes.Others = append(attributes.Others, requesting(name, "cpu", amount))
	}
	foreign := requesting("secret", "cpu", "1", "memory", "1Gi")
	foreign.Namespace = "other"
	attributes.Others = append(attributes.Others, foreign, requesting("idle"))
	want := " (used by e: 700, d: 600, c: 500, b: 400, a: 300, 2 more of the namespace: 300, other namespaces: 1000)"
	if got := holders(attributes, v1.ResourceCPU); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := holders(attributes, v1.ResourceMemory); got != " (used by other namespaces: 1073741824)" {
		t.Errorf("got %q", got)
	}
	if got := holders(attributes, "example.com/gpu"); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestWhatAResizeHolds: it is exact also if one container grows while another one shrinks, and with pod-level resources.
func TestWhatAResizeHolds(t *testing.T) {
	two := func(x, y string) *v1.Pod {
		p := requesting("p", "cpu", x, "memory", "1Gi", "example.com/gpu", "1")
		p.Spec.Containers = append(p.Spec.Containers, requesting("q", "cpu", y).Spec.Containers...)
		p.Spec.Containers[1].Name, p.Spec.Overhead = "d", list("cpu", "1")
		return p
	}
	podLevel := func(p *v1.Pod, amount string) *v1.Pod {
		p.Spec.Resources = &v1.ResourceRequirements{Requests: list("cpu", amount, "hugepages-2Mi", "2Mi")}
		return p
	}
	for name, test := range map[string]struct {
		old, now    *v1.Pod
		least, most string
	}{
		"moved":           {two("1", "2"), two("2", "1"), "4", "4"},
		"grown":           {two("1", "2"), two("2", "2"), "4", "5"},
		"shrunk":          {two("1", "2"), two("1", "1"), "3", "4"},
		"pod level comes": {two("1", "2"), podLevel(two("1", "2"), "5"), "4", "6"},
		"pod level":       {podLevel(two("1", "2"), "5"), podLevel(two("1", "2"), "4"), "5", "6"},
	} {
		s := spanOf(test.old, test.now)
		for what, p := range map[string]*v1.Pod{test.least: s.least, test.most: s.most} {
			used := lacks(&Attributes{Pod: p, Node: &v1.Node{}})
			amounts := map[v1.ResourceName]int64{}
			for _, u := range used {
				amounts[u.name] = u.requested
			}
			want := resource.MustParse(what)
			if amounts["cpu"] != want.MilliValue() || amounts["memory"] != 1<<30 {
				t.Errorf("%s: %v, want %s CPUs", name, amounts, what)
			}
		}
		if got := s.most.Spec.Resources.Requests["hugepages-2Mi"]; strings.HasPrefix(name, "pod level") && got.IsZero() {
			t.Errorf("%s: the huge pages are gone", name)
		}
	}
}

func TestResizable(t *testing.T) {
	swaps := func(_ *v1.Pod, c *v1.Container) bool { return c.Name == "swaps" }
	pod := func(name, memory string, policies ...v1.ContainerResizePolicy) *v1.Pod {
		p := requesting("p", "memory", memory)
		p.Spec.Containers[0].Name, p.Spec.Containers[0].ResizePolicy = name, policies
		return p
	}
	podLevel := func(memory string) *v1.Pod {
		p := pod("c", "1Gi")
		p.Spec.Resources = &v1.ResourceRequirements{Requests: list("memory", memory)}
		return p
	}
	restart := v1.ContainerResizePolicy{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}
	restartForCPU := v1.ContainerResizePolicy{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}
	const swap = "In-place resize of containers with swap is not supported."
	for name, test := range map[string]struct {
		handler         Resizable
		granted, pod    *v1.Pod
		detail, message string
	}{
		"an admission":         {pod: podLevel("1Gi")},
		"without swap":         {granted: pod("c", "1Gi"), pod: pod("c", "2Gi")},
		"with swap":            {granted: pod("swaps", "1Gi"), pod: pod("swaps", "2Gi"), detail: "swap_limitation", message: swap},
		"with swap, same":      {granted: pod("swaps", "1Gi"), pod: pod("swaps", "1024Mi")},
		"with swap, restarted": {granted: pod("swaps", "1Gi", restart), pod: pod("swaps", "2Gi", restart)},
		"with swap, restarted for CPU": {
			granted: pod("swaps", "1Gi", restartForCPU), pod: pod("swaps", "2Gi", restartForCPU),
			detail: "swap_limitation", message: swap,
		},
		"pod level": {handler: Resizable{PodLevel: true}, granted: podLevel("1Gi"), pod: podLevel("2Gi")},
		"pod level, gate off": {
			granted: podLevel("1Gi"), pod: podLevel("2Gi"), detail: "plr_feature_gate_off",
			message: "InPlacePodLevelResourcesVerticalScaling is disabled",
		},
		"pod level, gate off, same": {granted: podLevel("1Gi"), pod: podLevel("1Gi")},
	} {
		test.handler.Swaps = swaps
		v := test.handler.Admit(t.Context(), &Attributes{Pod: test.pod, Granted: test.granted})
		if v.Infeasible != test.detail || v.Message != test.message || v.Admitted() != (test.detail == "") {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
