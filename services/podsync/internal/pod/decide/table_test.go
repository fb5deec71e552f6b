package decide

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// situation is one line of the table of single-container pods: everything that the decision
// about the pod's container rests on.
type situation struct {
	policy v1.RestartPolicy
	own    v1.ContainerRestartPolicy // empty: the container has none
	rule   string                    // "", "on 3" or "not on 0": when a rule says Restart
	found  string                    // what the runtime has of the container, or had reported of it
	probes string                    // "", "live fails", "startup fails", "both fine"
	edited bool                      // the definition changed
	around string                    // "", "deleted", "ended", "no sandbox", "sandbox lost"
}

// outcome is what is to happen to it.
type outcome struct {
	Finished bool
	Stops    bool // the container, with its pod
	Kills    bool // the container alone
	Sandbox  bool // a new one
	Starts   bool
	Removes  bool // before a start
}

func (s situation) pod() *v1.Pod {
	p := testPod(s.policy, "a")
	c := &p.Spec.Containers[0]
	if s.own != "" {
		c.RestartPolicy = new(s.own)
	}
	rule := func(op v1.ContainerRestartRuleOnExitCodesOperator, code int32) []v1.ContainerRestartRule {
		return []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestart,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: []int32{code}},
		}}
	}
	switch s.rule {
	case "on 3":
		c.RestartPolicyRules = rule(v1.ContainerRestartRuleOnExitCodesOpIn, 3)
	case "not on 0":
		c.RestartPolicyRules = rule(v1.ContainerRestartRuleOnExitCodesOpNotIn, 0)
	}
	if s.around == "deleted" {
		p.DeletionTimestamp = &metav1.Time{Time: t0}
	}
	if s.around == "ended" {
		p.Status.Phase = v1.PodFailed
	}
	var reported int32
	if n, _ := fmt.Sscanf(s.found, "reported %d", &reported); n == 1 {
		p.Status.ContainerStatuses = []v1.ContainerStatus{{
			Name:        "a",
			ContainerID: "containerd://9",
			State:       v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: reported}},
		}}
	}
	return p
}

func (s situation) input() Input {
	in := Input{Pod: s.pod(), State: ready(), Now: t0, Liveness: map[string]Result{}, Startup: map[string]Result{}}
	var code int32
	switch n, _ := fmt.Sscanf(s.found, "exited %d", &code); {
	case n == 1:
		in.State.Containers = []pod.Container{ctr("1", "a", dead, code)}
	case s.found == "running":
		in.State.Containers = []pod.Container{ctr("1", "a", running, 0)}
	case s.found == "created":
		in.State.Containers = []pod.Container{ctr("1", "a", created, 0)}
	case s.found == "unknown":
		in.State.Containers = []pod.Container{ctr("1", "a", unknown, 0)}
	}
	switch s.probes {
	case "live fails":
		in.Liveness["1"] = Failure
	case "startup fails":
		in.Startup["1"] = Failure
	case "both fine":
		in.Liveness["1"], in.Startup["1"] = Success, Success
	}
	if s.edited {
		in.Hash = func(*v1.Container) uint64 { return 1 }
	}
	switch s.around {
	case "no sandbox":
		in.State.Sandboxes = nil
	case "sandbox lost":
		in.State.Sandboxes[0].Ready = false
	}
	return in
}

// again says in plain words when a container that ended runs again.
func (s situation) again(code int32) bool {
	if s.own == "" {
		return s.policy == "Always" || s.policy == "OnFailure" && code != 0
	}
	if s.rule == "on 3" && code == 3 || s.rule == "not on 0" && code != 0 {
		return true
	}
	return s.own == "Always" || s.own == "OnFailure" && code != 0
}

// expected is what the documentation of pods lets one expect.
func (s situation) expected() outcome {
	alive := s.found == "running" || s.found == "unknown"
	exists := alive || s.found == "created" || s.found[:2] == "ex"
	var code int32
	exited, _ := fmt.Sscanf(s.found, "exited %d", &code)
	reported, _ := fmt.Sscanf(s.found, "reported %d", &code)

	switch s.around {
	case "deleted", "ended": // nothing is started; what is there is stopped, the sandbox with it
		return outcome{Stops: true}

	case "no sandbox", "sandbox lost":
		wanted := exited == 0 && reported == 0 || s.again(code)
		hasRun := exists && s.found != "unknown" || reported == 1
		// A pod of policy Never is not run a second time because its sandbox died.
		ranOnce := s.policy == "Never" && s.around == "sandbox lost" && exists
		if ranOnce || !wanted && hasRun {
			lost := s.around == "sandbox lost" // its network may still be there
			return outcome{Stops: alive || lost, Finished: !alive && !lost}
		}
		return outcome{
			Stops:   alive || s.around == "sandbox lost",
			Sandbox: true,
			Starts:  true,
			Removes: s.found == "created",
		}
	}

	switch {
	case s.found == "running":
		fails := s.probes == "live fails" || s.probes == "startup fails"
		restarts := s.edited || s.own != "" && s.own != "Never" || s.own == "" && s.policy != "Never"
		return outcome{Kills: s.edited || fails, Starts: (s.edited || fails) && restarts}
	case exited == 1 && !s.again(code), reported == 1 && !s.again(code):
		return outcome{Stops: true} // its sandbox has no use any more
	default:
		return outcome{Kills: s.found == "unknown", Removes: s.found == "created", Starts: true}
	}
}

func situations(visit func(situation)) {
	for _, policy := range []v1.RestartPolicy{"Always", "OnFailure", "Never"} {
		for _, own := range []v1.ContainerRestartPolicy{"", "Always", "OnFailure", "Never"} {
			for _, rule := range []string{"", "on 3", "not on 0"} {
				if own == "" && rule != "" {
					continue // the API takes rules only beside a policy
				}
				for _, found := range []string{"nothing", "reported 0", "reported 3", "created", "running", "exited 0",
					"exited 1", "exited 3", "unknown"} {
					for _, probes := range []string{"", "live fails", "startup fails", "both fine"} {
						for _, edited := range []bool{false, true} {
							for _, around := range []string{"", "deleted", "ended", "no sandbox", "sandbox lost"} {
								visit(situation{policy, own, rule, found, probes, edited, around})
							}
						}
					}
				}
			}
		}
	}
}

// TestEverySituationOfOneContainer compares each decision with what the table expects.
func TestEverySituationOfOneContainer(t *testing.T) {
	visited := 0
	situations(func(s situation) {
		visited++
		in := s.input()
		a := Decide(in)
		got := outcome{
			Finished: a.Finished, Stops: a.StopPod != nil, Kills: len(a.Kill) > 0, Sandbox: a.Sandbox != nil,
			Starts: len(a.Start) > 0, Removes: len(a.Remove) > 0,
		}
		if want := s.expected(); got != want {
			t.Errorf("%+v:\n got %+v\nwant %+v", s, got, want)
		}
		if a.StopPod != nil && (a.Sandbox == nil) == (a.StopPod.Reason == StopSandboxChanged) {
			t.Errorf("%+v: reason %s, sandbox %v", s, a.StopPod.Reason, a.Sandbox)
		}
		if a.StopPod != nil {
			alive := s.found == "running" || s.found == "unknown"
			if (len(a.StopPod.Containers) == 1) != alive ||
				(len(a.StopPod.Sandboxes) == 1) == (s.around == "no sandbox") && a.Sandbox == nil {
				t.Errorf("%+v: stops %+v", s, a.StopPod)
			}
		}
		for _, k := range a.Kill {
			if k.Restart != (len(a.Start) > 0) {
				t.Errorf("%+v: the kill says restart=%v, started: %v", s, k.Restart, a.Start)
			}
		}
		if len(a.Start) > 0 && (a.Sandbox == nil) == (a.SandboxID == "") {
			t.Errorf("%+v: starts in sandbox %q, new one %v", s, a.SandboxID, a.Sandbox)
		}
	})
	if visited != 10800 {
		t.Errorf("%d situations", visited)
	}
}

// stage is one line of the table of pods with two init containers.
type stage struct {
	policy v1.RestartPolicy
	kinds  [2]string // "plain" or "sidecar"; "probed" is a sidecar with a startup probe
	found  [2]string
	begun  bool // the regular container runs already
	result Result
}

func (s stage) input() Input {
	p := testPod(s.policy, "a")
	in := Input{Pod: p, State: ready(), Now: t0, Startup: map[string]Result{}}
	states := map[string]func(id, name string) pod.Container{
		"running": func(id, name string) pod.Container { return ctr(id, name, running, 0) },
		"done":    func(id, name string) pod.Container { return ctr(id, name, dead, 0) },
		"failed":  func(id, name string) pod.Container { return ctr(id, name, dead, 1) },
		"out of memory": func(id, name string) pod.Container { // a child of it was killed
			c := ctr(id, name, dead, 0)
			c.Reason = "OOMKilled"
			return c
		},
		"unknown": func(id, name string) pod.Container { return ctr(id, name, unknown, 0) },
		"created": func(id, name string) pod.Container { return ctr(id, name, created, 0) },
		"elsewhere": func(id, name string) pod.Container { // left over in an older sandbox
			c := ctr(id, name, dead, 0)
			c.SandboxID = "older"
			return c
		},
	}
	for i, name := range []string{"i", "j"} {
		c := plain(name)
		if s.kinds[i] != "plain" {
			c = sidecar(name)
		}
		if s.kinds[i] == "probed" {
			c.StartupProbe = &v1.Probe{}
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		if make, there := states[s.found[i]]; there {
			in.State.Containers = append(in.State.Containers, make("of-"+name, name))
			in.Startup["of-"+name] = s.result
		}
	}
	if s.begun {
		in.State.Containers = append(in.State.Containers, ctr("of-a", "a", running, 0))
	}
	return in
}

// plot is what is to happen: names, in order.
type plot struct {
	Fails  bool // the pod, for good
	Kills  []string
	Starts []string
}

// expected walks through the init containers as the documentation describes it: one after the
// other, each once the one before is through; a sidecar is through when it has started, and
// is kept running from then on; what is through is not looked at again, unless it is a sidecar.
func (s stage) expected() plot {
	var p plot
	names := []string{"i", "j"}
	there := func(i int) bool { return s.found[i] != "nothing" && s.found[i] != "elsewhere" }
	reached := -1 // the last one that was made
	for i := range names {
		if there(i) {
			reached = i
		}
	}
	keepSidecar := func(i int) (through bool) {
		switch {
		case s.found[i] == "unknown":
			p.Kills = append(p.Kills, names[i])
			fallthrough
		case s.found[i] != "running":
			p.Starts = append(p.Starts, names[i])
			return false
		case s.kinds[i] == "probed" && s.result == Failure:
			p.Kills = append(p.Kills, names[i])
			p.Starts = append(p.Starts, names[i])
			return false
		case s.kinds[i] == "probed" && s.result == Unknown:
			return false
		}
		return true
	}
	if s.begun {
		for i := range names {
			if s.kinds[i] != "plain" {
				keepSidecar(i)
			}
		}
		return p
	}
	if reached < 0 {
		return plot{Starts: []string{"i"}}
	}
	if reached == 1 && s.kinds[0] != "plain" {
		keepSidecar(0)
	}
	through := false
	switch {
	case s.kinds[reached] != "plain":
		through = keepSidecar(reached)
	case s.found[reached] == "done":
		through = true
	case s.found[reached] == "running":
	case s.policy == "Never" && s.found[reached] != "created":
		return plot{Fails: true}
	case s.found[reached] == "unknown":
		p.Kills = append(p.Kills, names[reached])
		fallthrough
	default:
		p.Starts = append(p.Starts, names[reached])
	}
	if through {
		p.Starts = append(p.Starts, []string{"j", "a"}[reached])
	}
	return p
}

// TestEveryStageOfInitialization compares each decision with what the walk expects.
func TestEveryStageOfInitialization(t *testing.T) {
	visited := 0
	found := []string{"nothing", "elsewhere", "created", "running", "done", "failed", "out of memory", "unknown"}
	kinds := []string{"plain", "sidecar", "probed"}
	for _, policy := range []v1.RestartPolicy{"Always", "OnFailure", "Never"} {
		for n := range len(kinds) * len(kinds) * len(found) * len(found) * 2 * 3 {
			pick := func(of int) int { i := n % of; n /= of; return i }
			s := stage{
				policy: policy,
				kinds:  [2]string{kinds[pick(3)], kinds[pick(3)]},
				found:  [2]string{found[pick(8)], found[pick(8)]},
				begun:  pick(2) == 1,
				result: Result(pick(3)),
			}
			visited++
			a := Decide(s.input())
			var got plot
			got.Fails = a.StopPod != nil && a.StopPod.Reason == StopInitFailed
			for _, k := range a.Kill {
				got.Kills = append(got.Kills, k.Name)
			}
			for _, start := range a.Start {
				got.Starts = append(got.Starts, start.Name)
				if start.Init == (start.Name == "a") {
					t.Errorf("%+v: %s is started with Init=%v", s, start.Name, start.Init)
				}
			}
			want := s.expected()
			slices.Sort(got.Kills)
			slices.Sort(want.Kills)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", s, diff)
			}
			if a.Sandbox != nil || a.Finished {
				t.Errorf("%+v: %+v", s, a)
			}
		}
	}
	if visited != 10368 {
		t.Errorf("%d stages", visited)
	}
}
