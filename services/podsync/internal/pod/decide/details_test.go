package decide

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// delayOf is how long a container that ended at that moment has to wait.
func delayOf(b *Backoff, name string, ended time.Time) time.Duration {
	_, _, delay, waits := b.wait(name, ended, ended)
	if !waits {
		return 0
	}
	return delay
}

func TestWhatResetsTheBackoff(t *testing.T) {
	crashed := func() *Backoff {
		b := NewBackoff(0)
		for i := range 3 {
			at := t0.Add(time.Duration(i) * time.Minute)
			b.Started(Start{Name: "a", Previous: at}, at)
		}
		return b
	}
	now := t0.Add(3 * time.Minute)
	if got := delayOf(crashed(), "a", now); got != 40*time.Second {
		t.Fatalf("after three crashes %s", got)
	}
	b := crashed()
	b.Started(Start{Name: "a", Previous: now, Changed: true}, now)
	if got := delayOf(b, "a", now); got != 10*time.Second {
		t.Errorf("after a new definition %s", got)
	}
	b = crashed()
	healthy := now.Add(time.Hour)
	b.Started(Start{Name: "a", Previous: healthy}, healthy)
	if got := delayOf(b, "a", healthy); got != 10*time.Second {
		t.Errorf("after it had been healthy %s", got)
	}
}

func TestAdoptTakesTheNewestPair(t *testing.T) {
	at := func(id, name string, restarts int32, started, finished time.Duration) pod.Container {
		c := ctr(id, name, dead, 1)
		c.RestartCount, c.Started, c.Finished = restarts, t0.Add(started), t0.Add(finished)
		return c
	}
	last := 200 * time.Second
	fresh := at("9", "a", 9, 0, 0)
	fresh.State, fresh.Started = created, time.Time{}
	for name, test := range map[string]struct {
		list []pod.Container
		want time.Duration
	}{
		"of three": {[]pod.Container{at("3", "a", 3, 150*time.Second, last),
			at("2", "a", 2, 100*time.Second, 130*time.Second), at("1", "a", 1, 0, 20*time.Second)}, 40 * time.Second},
		"one that has not started says nothing": {
			[]pod.Container{fresh, at("3", "a", 3, 150*time.Second, last), at("2", "a", 2, 100*time.Second, 130*time.Second)},
			40 * time.Second,
		},
		"another container's end is not its own": {
			[]pod.Container{at("3", "a", 3, 150*time.Second, last), at("7", "b", 1, 0, 149*time.Second),
				at("2", "a", 2, 100*time.Second, 130*time.Second)}, 40 * time.Second,
		},
		"one that was never restarted": {[]pod.Container{at("3", "a", 0, 150*time.Second, last),
			at("2", "a", 0, 100*time.Second, 130*time.Second)}, 0},
	} {
		b := NewBackoff(0)
		b.Adopt(ready(test.list...))
		if got := delayOf(b, "a", t0.Add(last)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestEachContainerWaitsForItself(t *testing.T) {
	b := NewBackoff(0)
	b.Started(Start{Name: "a", Previous: t0}, t0)
	b.Started(Start{Name: "b", Previous: t0}, t0)
	b.Started(Start{Name: "b", Previous: t0}, t0)
	st := ready(ctr("1", "a", dead, 1), ctr("2", "b", dead, 1))
	for i := range st.Containers {
		st.Containers[i].Finished = t0
	}
	p := testPod(v1.RestartPolicyAlways, "b", "a", "never-ran")
	a := Decide(Input{Pod: p, State: st, Now: t0, Backoff: b})
	if len(a.Wait) != 2 || !a.Wake.Equal(t0.Add(10*time.Second)) {
		t.Errorf("waits %+v, wakes at %s: want the earlier of the two", a.Wait, a.Wake)
	}
	if len(a.Start) != 1 || a.Start[0].Name != "never-ran" || !a.Start[0].Previous.IsZero() {
		t.Errorf("starts %+v", a.Start)
	}
}

func TestRestartCountsAreNotMixedUp(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a", "b")
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		{Name: "a", ContainerID: "x://1", RestartCount: 2}, {Name: "b", ContainerID: "x://2", RestartCount: 9},
	}
	a := Decide(Input{Pod: p, State: ready(), Now: t0})
	if len(a.Start) != 2 || a.Start[0].RestartCount != 3 || a.Start[1].RestartCount != 10 {
		t.Errorf("starts %+v", a.Start)
	}
}

func TestWhatIsSaidOfANewSandbox(t *testing.T) {
	st := ready(ctr("3", "a", dead, 1), ctr("2", "a", dead, 1), ctr("1", "a", dead, 1))
	st.Sandboxes[0].Ready, st.Sandboxes[0].Attempt = false, 4
	a := Decide(Input{Pod: testPod(v1.RestartPolicyAlways, "a"), State: st, Now: t0.Add(time.Hour)})
	want := &Sandbox{Attempt: 5, Message: "pod sandbox is not ready", Replaces: "s0"}
	if diff := cmp.Diff(want, a.Sandbox); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"2", "1"}, a.Remove); diff != "" {
		t.Errorf("removed: %s", diff)
	}
	if len(a.Start) != 1 || a.Start[0].Init || a.Start[0].Index != 0 {
		t.Errorf("starts %+v", a.Start)
	}
}

// TestStarts looks at what a start says of the container.
func TestStarts(t *testing.T) {
	p := withInit(testPod(v1.RestartPolicyAlways, "a", "b"), plain("i"), plain("j"))
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{
		EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e"},
	}}
	a := Decide(Input{Pod: p, State: ready(ctr("1", "i", dead, 0)), Now: t0})
	if len(a.Start) != 2 {
		t.Fatalf("starts %+v", a.Start)
	}
	e, j := a.Start[0], a.Start[1]
	if e.Name != "e" || e.Init || !e.Ephemeral || e.Index != 0 {
		t.Errorf("ephemeral container: %+v", e)
	}
	if j.Name != "j" || !j.Init || j.Ephemeral || j.Index != 1 || j.Spec != &p.Spec.InitContainers[1] {
		t.Errorf("init container: %+v", j)
	}
	a = Decide(Input{Pod: p, State: ready(ctr("4", "e", running, 0), ctr("3", "a", running, 0)), Now: t0})
	if len(a.Start) != 1 || a.Start[0].Name != "b" || a.Start[0].Init || a.Start[0].Index != 1 ||
		a.Start[0].Spec != &p.Spec.Containers[1] {
		t.Errorf("regular container: %+v", a.Start)
	}
}

// TestKills looks at what a kill says of the container.
func TestKills(t *testing.T) {
	p := withInit(testPod(v1.RestartPolicyAlways, "a"), sidecar("s"))
	for _, c := range []*v1.Container{&p.Spec.Containers[0], &p.Spec.InitContainers[0]} {
		c.LivenessProbe = &v1.Probe{TerminationGracePeriodSeconds: new(int64(5))}
		c.StartupProbe = &v1.Probe{TerminationGracePeriodSeconds: new(int64(6))}
	}
	st := ready(ctr("1", "a", running, 0), ctr("2", "s", running, 0))
	fine := map[string]Result{"1": Success, "2": Success}
	failed := func(id string) map[string]Result {
		m := map[string]Result{"1": Success, "2": Success}
		m[id] = Failure
		return m
	}
	edited := func(c *v1.Container) uint64 {
		if c.Name == "s" {
			return 1
		}
		return 0
	}
	for name, test := range map[string]struct {
		in   Input
		want Kill
	}{
		"liveness of a container": {Input{Liveness: failed("1"), Startup: fine}, Kill{
			ID:      "1",
			Name:    "a",
			Reason:  KillLivenessProbe,
			Message: "Container a failed liveness probe, will be restarted",
			Grace:   5 * time.Second,
		}},
		"startup of a container": {Input{Liveness: fine, Startup: failed("1")}, Kill{
			ID:      "1",
			Name:    "a",
			Reason:  KillStartupProbe,
			Message: "Container a failed startup probe, will be restarted",
			Grace:   6 * time.Second,
		}},
		"liveness of a sidecar": {Input{Liveness: failed("2"), Startup: fine}, Kill{
			ID:      "2",
			Name:    "s",
			Reason:  KillLivenessProbe,
			Message: "Init container s failed liveness probe",
			Grace:   5 * time.Second,
		}},
		"startup of a sidecar": {Input{Liveness: fine, Startup: failed("2")}, Kill{
			ID:      "2",
			Name:    "s",
			Reason:  KillStartupProbe,
			Message: "Init container s failed startup probe",
			Grace:   6 * time.Second,
		}},
		"definition of a sidecar": {Input{Liveness: fine, Startup: fine, Hash: edited}, Kill{
			ID:      "2",
			Name:    "s",
			Message: "Init container s definition changed",
			Grace:   30 * time.Second,
		}},
	} {
		in := test.in
		in.Pod, in.State, in.Now = p, st, t0
		test.want.Restart = true
		test.want.Spec = podutil.Container(&p.Spec, test.want.Name)
		a := Decide(in)
		if diff := cmp.Diff([]Kill{test.want}, a.Kill); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if len(a.Start) != 1 || a.Start[0].Name != test.want.Name || a.Start[0].Init != (test.want.Name == "s") {
			t.Errorf("%s: starts %+v", name, a.Start)
		}
	}
}

// TestStops looks at what is said of each container of a pod that is stopped.
func TestStops(t *testing.T) {
	p := withInit(testPod(v1.RestartPolicyAlways, "a"), sidecar("s"), plain("i"))
	p.DeletionTimestamp = &metav1.Time{Time: t0}
	for _, name := range []string{"d", "e"} {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
			v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: name}})
	}
	a := Decide(Input{Pod: p, Now: t0, State: ready(
		ctr("5", "stranger", running, 0), ctr("4", "e", running, 0), ctr("3", "a", running, 0),
		ctr("2", "i", running, 0), ctr("1", "s", running, 0))})
	want := []Kill{
		{ID: "5", Name: "stranger", Message: "Stopping container stranger", Grace: 30 * time.Second},
		{ID: "4", Name: "e", Message: "Stopping container e", Grace: 30 * time.Second, Spec: podutil.Container(&p.Spec, "e")},
		{ID: "3", Name: "a", Message: "Stopping container a", Grace: 30 * time.Second, Spec: podutil.Container(&p.Spec, "a")},
		{ID: "2", Name: "i", Message: "Stopping container i", Grace: 30 * time.Second, Spec: podutil.Container(&p.Spec, "i"),
			PlainInit: true},
		{ID: "1", Name: "s", Message: "Stopping container s", Grace: 30 * time.Second, Spec: podutil.Container(&p.Spec, "s"),
			Stage: 1},
	}
	if diff := cmp.Diff(want, a.StopPod.Containers); diff != "" {
		t.Errorf("stops (-want +got):\n%s", diff)
	}
	if want[1].Spec.Name != "e" {
		t.Errorf("the spec of e is %s's", want[1].Spec.Name)
	}
}

func TestSmallPrintOfRestarts(t *testing.T) {
	p := testPod(v1.RestartPolicyNever, "a")
	c := &p.Spec.Containers[0]
	if live := ctr("1", "a", running, 0); WantsStart(p, &p.Status, c, &live) {
		t.Error("a container that runs wants a start")
	}
	c.RestartPolicy = new(v1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []v1.ContainerRestartRule{
		{Action: v1.ContainerRestartRuleActionRestart}, // says nothing of exit codes
		{Action: v1.ContainerRestartRuleActionRestart,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn,
				Values: []int32{3}}},
	}
	if ShouldRestart(p, c, 1) || !ShouldRestart(p, c, 3) {
		t.Error("a rule without exit codes takes part")
	}
	if CouldRestartAll(p) || !CouldRestartAll(together()) {
		t.Error("which pods may begin again is mixed up")
	}
	other := &v1.PodStatus{Conditions: []v1.PodCondition{
		{Type: v1.PodReady, Status: v1.ConditionTrue}, {Type: v1.AllContainersRestarting, Status: v1.ConditionFalse},
	}}
	if RestartingAll(together(), ready(), other) {
		t.Error("other conditions make the pod begin again")
	}
	a := Decide(Input{Pod: together(), State: ready(ctr("3", "a", dead, 42), ctr("2", "b", running, 0)), Now: t0})
	if len(a.Kill) != 1 || !a.Kill[0].Restart {
		t.Errorf("kills %+v: b runs again", a.Kill)
	}
}

// TestWhatWasOnlyCreatedIsNoDeadInstance: the end before it is still the last one, from which its back-off counts.
func TestWhatWasOnlyCreatedIsNoDeadInstance(t *testing.T) {
	p, b := testPod(v1.RestartPolicyAlways, "a"), NewBackoff(0)
	b.Started(Start{Name: "a", Previous: t0}, t0)
	ended := ctr("1", "a", dead, 1)
	in := Input{Pod: p, State: ready(ctr("2", "a", created, 0), ended), Now: ended.Finished.Add(time.Second), Backoff: b}
	if got := briefly(Decide(in)); len(got.Wait) != 1 || len(got.Remove) != 0 {
		t.Errorf("while it waits: %+v", got)
	}
	in.Now = ended.Finished.Add(time.Minute)
	if got := briefly(Decide(in)); len(got.Start) != 1 || !slices.Equal(got.Remove, []string{"2"}) {
		t.Errorf("when it starts: %+v", got)
	}
	in.State = ready(ctr("3", "a", running, 0), ctr("2", "a", created, 0), ended)
	if got := briefly(Decide(in)); !slices.Equal(got.Remove, []string{"2"}) {
		t.Errorf("beside what runs: %+v", got)
	}
}

// TestContainersThatKeepReplacedSandboxes: a pod whose sandbox is replaced again and again keeps a few of them, and of
// older ones none that nothing but an end that was reported keeps.
func TestContainersThatKeepReplacedSandboxes(t *testing.T) {
	p := testPod(v1.RestartPolicyOnFailure, "lives")
	st := ready(ctr("lives", "lives", running, 0))
	for i := range maxReplaced + 3 {
		name := fmt.Sprint("c", i)
		p.Spec.Containers = append(p.Spec.Containers, plain(name))
		c := ctr("id-"+name, name, dead, 0)
		c.SandboxID = fmt.Sprint("old", i)
		st.Sandboxes = append(st.Sandboxes, pod.Sandbox{ID: c.SandboxID})
		st.Containers = append(st.Containers, c)
		if i != maxReplaced+1 { // the last but one is not reported yet
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
				Name: name, State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "x://" + c.ID}},
			})
		}
	}
	got := briefly(Decide(Input{Pod: p, State: st, Now: t0}))
	want := brief{Remove: []string{fmt.Sprint("id-c", maxReplaced), fmt.Sprint("id-c", maxReplaced+2)}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	st.Containers = slices.DeleteFunc(st.Containers, func(c pod.Container) bool {
		return slices.Contains(want.Remove, c.ID)
	})
	if d := cmp.Diff(brief{}, briefly(Decide(Input{Pod: p, State: st, Now: t0}))); d != "" {
		t.Errorf("without them: %s", d)
	}
}
