package decide

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

func TestRestartCount(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a")
	count := func(st *pod.State) int32 {
		return Decide(Input{Pod: p, State: st, Now: t0.Add(time.Hour)}).Start[0].RestartCount
	}
	if got := count(ready()); got != 0 {
		t.Errorf("first start counts %d", got)
	}
	c := ctr("1", "a", dead, 1)
	c.RestartCount = 4
	if got := count(ready(c)); got != 5 {
		t.Errorf("after count 4 comes %d", got)
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a", ContainerID: "containerd://0", RestartCount: 8}}
	if got := count(ready(c)); got != 8 {
		t.Errorf("the restart count in the API is no floor: %d, want 8", got)
	}
	if got := count(ready()); got != 9 {
		t.Errorf("an instance that only the API knows does not count: %d, want 9", got)
	}
}

// The logs of an instance that all others have forgotten, and a dead container that is still to be removed, keep their
// restart counts.
func TestARestartCountIsGivenOnce(t *testing.T) {
	known := ctr("1", "a", dead, 1)
	known.RestartCount = 4
	reported := []v1.ContainerStatus{{Name: "a", ContainerID: "containerd://0", RestartCount: 2}}
	for name, test := range map[string]struct {
		state             *pod.State
		reported          []v1.ContainerStatus
		logged, unremoved map[string]int32
		want              int32
	}{
		"logs":                       {ready(), nil, map[string]int32{"a": 7}, nil, 7},
		"logs of another":            {ready(), nil, map[string]int32{"b": 7}, nil, 0},
		"logs beside the runtime":    {ready(known), nil, map[string]int32{"a": 7}, nil, 5},
		"logs beside the API":        {ready(), reported, map[string]int32{"a": 7}, nil, 3},
		"remains":                    {ready(), nil, nil, map[string]int32{"a": 0}, 1},
		"remains of another":         {ready(), nil, nil, map[string]int32{"b": 8}, 0},
		"remains beside the runtime": {ready(known), nil, nil, map[string]int32{"a": 8}, 9},
		"remains of before":          {ready(known), nil, nil, map[string]int32{"a": 3}, 5},
		"remains beside logs":        {ready(), nil, map[string]int32{"a": 7}, map[string]int32{"a": 2}, 7},
	} {
		p := testPod(v1.RestartPolicyAlways, "a")
		p.Status.ContainerStatuses = test.reported
		a := Decide(Input{
			Pod: p, State: test.state, Now: t0.Add(time.Hour), Logged: test.logged, Unremoved: test.unremoved,
		})
		if got := a.Start[0].RestartCount; got != test.want {
			t.Errorf("%s: restart count %d, want %d", name, got, test.want)
		}
	}
}

func TestRestartRules(t *testing.T) {
	p := testPod(v1.RestartPolicyNever, "a")
	c := &p.Spec.Containers[0]
	c.RestartPolicy = new(v1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []v1.ContainerRestartRule{
		{
			Action: v1.ContainerRestartRuleActionRestart,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
				Operator: v1.ContainerRestartRuleOnExitCodesOpIn,
				Values:   []int32{42},
			},
		},
	}
	for code, want := range map[int32]bool{0: false, 1: false, 42: true} {
		if got := ShouldRestart(p, c, code); got != want {
			t.Errorf("exit code %d: restart %v, want %v", code, got, want)
		}
	}
	c.RestartPolicyRules[0].ExitCodes.Operator = v1.ContainerRestartRuleOnExitCodesOpNotIn
	for code, want := range map[int32]bool{0: true, 42: false} {
		if got := ShouldRestart(p, c, code); got != want {
			t.Errorf("not in, exit code %d: restart %v, want %v", code, got, want)
		}
	}
}

func TestEphemeralContainers(t *testing.T) {
	debugged := func(p *v1.Pod) *v1.Pod {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"},
		}}
		return p
	}
	for name, test := range map[string]struct {
		pod     *v1.Pod
		state   *pod.State
		refused bool
		want    []string
	}{
		"starts in a pod that runs": {pod: debugged(testPod(v1.RestartPolicyAlways, "a")),
			state: ready(ctr("1", "a", running, 0)), want: []string{"debug"}},
		"starts first": {pod: debugged(testPod(v1.RestartPolicyAlways, "a")), state: ready(),
			want: []string{"debug", "a"}},
		"starts while the pod is initialized": {pod: debugged(withInit(testPod(v1.RestartPolicyAlways, "a"), plain("i"))),
			state: ready(ctr("1", "i", running, 0)), want: []string{"debug"}},
		"is not started twice": {pod: debugged(testPod(v1.RestartPolicyAlways, "a")), state: ready(
			ctr("2", "debug", dead, 1), ctr("1", "a", running, 0),
		)},
		"is started if it was created only": {pod: debugged(testPod(v1.RestartPolicyAlways, "a")),
			state: ready(ctr("2", "debug", created, 0), ctr("1", "a", running, 0)), want: []string{"debug"}},
		"refused": {pod: debugged(testPod(v1.RestartPolicyAlways, "a")), state: ready(ctr("1", "a", running, 0)),
			refused: true},
		"does not keep a pod that has ended": {pod: debugged(testPod(v1.RestartPolicyNever, "a")), state: ready(ctr("1",
			"a", dead, 0))},
		"waits for the sandbox": {pod: debugged(testPod(v1.RestartPolicyAlways, "a")), state: &pod.State{},
			want: []string{"a"}},
	} {
		var started []string
		for _, s := range Decide(Input{Pod: test.pod, State: test.state, Now: t0,
			Refused: map[string]bool{"debug": test.refused}}).Start {
			started = append(started, s.Name)
			if s.Ephemeral != (s.Name == "debug") {
				t.Errorf("%s: %s is ephemeral: %v", name, s.Name, s.Ephemeral)
			}
		}
		if diff := cmp.Diff(test.want, started); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	reported := debugged(testPod(v1.RestartPolicyAlways, "a"))
	reported.Status.EphemeralContainerStatuses = []v1.ContainerStatus{{
		Name:  "debug",
		State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}},
	}}
	if a := Decide(Input{Pod: reported, State: ready(ctr("1", "a", running, 0)), Now: t0}); len(a.Start) != 0 {
		t.Errorf("one whose remains were removed is started again: %v", a.Start)
	}
}
