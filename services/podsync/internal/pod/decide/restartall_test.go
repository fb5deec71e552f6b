package decide

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
)

// together is a pod of which one container restarts all when it ends with 42.
func together() *v1.Pod {
	p := withInit(testPod(v1.RestartPolicyNever, "a", "b"), plain("i"))
	podtest.SetRestartRule(&p.Spec.Containers[0], v1.ContainerRestartRuleActionRestartAllContainers, 42)
	return p
}

func TestRestartAll(t *testing.T) {
	begun := &v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.AllContainersRestarting, Status: v1.ConditionTrue}}}
	reported := begun.DeepCopy()
	reported.ContainerStatuses = []v1.ContainerStatus{{
		Name:        "b",
		ContainerID: "x://3",
		State:       v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}},
	}}
	for name, test := range map[string]struct {
		state    *pod.State
		reported *v1.PodStatus
		kill     []string
		reset    []string
		start    []string
	}{
		"what asked for it goes last": {
			state: ready(ctr("3", "a", dead, 42), ctr("2", "b", running, 0), ctr("1", "i", dead, 0)),
			kill:  []string{"2"}, reset: []string{"2", "1", "3"},
		},
		"another exit code does not": {state: ready(ctr("3", "a", dead, 1), ctr("2", "b", running, 0),
			ctr("1", "i", dead, 0))},
		"an older instance does not": {
			state: ready(ctr("4", "a", running, 0), ctr("3", "a", dead, 42), ctr("2", "b", running, 0),
				ctr("1", "i", dead, 0)),
		},
		"one that was begun goes on": {state: ready(ctr("1", "i", dead, 0)), reported: begun, reset: []string{"1"}},
		"then it begins again":       {state: ready(), reported: begun, start: []string{"i"}},
		"once all is reported it is an ordinary pod again": {
			state: ready(ctr("5", "i", dead, 0)), reported: &v1.PodStatus{}, start: []string{"a", "b"},
		},
		"an ephemeral container stays": {state: ready(ctr("9", "debug", running, 0), ctr("3", "a", dead, 42)),
			reset: []string{"3"}},
	} {
		a := Decide(Input{Pod: together(), State: test.state, Now: t0.Add(time.Hour), Reported: test.reported})
		var kill, start []string
		for _, k := range a.Kill {
			kill = append(kill, k.ID)
			if k.Grace != minGrace || k.PreStop {
				t.Errorf("%s: %s gets %v", name, k.ID, k.Grace)
			}
		}
		for _, s := range a.Start {
			start = append(start, s.Name)
		}
		if !slices.Equal(kill, test.kill) || !slices.Equal(a.Reset, test.reset) || !slices.Equal(start, test.start) ||
			a.StopPod != nil {
			t.Errorf("%s: kill %v, reset %v, start %v, stop %v", name, kill, a.Reset, start, a.StopPod)
		}
	}
	// One that had done its work does it again.
	done := testPod(v1.RestartPolicyNever, "b")
	done.Spec.Containers = append(done.Spec.Containers, together().Spec.Containers[0])
	var start []string
	for _, s := range Decide(Input{Pod: done, State: ready(), Now: t0, Reported: reported}).Start {
		start = append(start, s.Name)
		if s.Name == "b" && s.RestartCount != 1 {
			t.Errorf("restart count %d", s.RestartCount)
		}
	}
	if diff := cmp.Diff([]string{"b", "a"}, start); diff != "" {
		t.Error(diff)
	}
}
