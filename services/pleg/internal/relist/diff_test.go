package relist

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func snap(state State) Snapshot {
	s := Snapshot{}
	if state != Absent {
		s.Add("pod", "c1", Item{State: state, Name: "c"})
	}
	return s
}

func TestDiff(t *testing.T) {
	cases := []struct {
		name     string
		old, now State
		want     []EventType
	}{
		{"nothing", Running, Running, nil},
		{"created", Absent, Created, []EventType{ContainerChanged}},
		{"started", Created, Running, []EventType{ContainerStarted}},
		{"appeared running", Absent, Running, []EventType{ContainerStarted}},
		{"died", Running, Exited, []EventType{ContainerDied}},
		{"came and went between two relists", Absent, Exited, []EventType{ContainerDied}},
		{"removed after death", Exited, Absent, []EventType{ContainerRemoved}},
		{"vanished while running", Running, Absent, []EventType{ContainerDied, ContainerRemoved}},
		{"vanished while unknown", Unknown, Absent, []EventType{ContainerDied, ContainerRemoved}},
		{"never started, removed", Created, Absent, []EventType{ContainerRemoved}},
		{"lost", Running, Unknown, []EventType{ContainerChanged}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []EventType
			for _, ev := range Diff(snap(c.old), snap(c.now)) {
				if ev.PodUID != "pod" || ev.ID != "c1" {
					t.Errorf("event about %s/%s, want pod/c1", ev.PodUID, ev.ID)
				}
				got = append(got, ev.Type)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
		})
	}
}

func TestUnfinishedLooksAtTheNewestAttempt(t *testing.T) {
	s := Snapshot{}
	s.Add("restarted", "a0", Item{State: Exited, Name: "a", Attempt: 0})
	s.Add("restarted", "a1", Item{State: Running, Name: "a", Attempt: 1})
	s.Add("ended", "b0", Item{State: Running, Name: "b"})
	s.Add("ended", "b1", Item{State: Exited, Name: "b", Attempt: 1})
	s.Add("sandboxless", "s", Item{State: Exited, Sandbox: true})
	if got, want := s.unfinished(), []string{"ended", "sandboxless"}; !slices.Equal(got, want) {
		t.Errorf("unfinished = %v, want %v", got, want)
	}
}

func FuzzDiffAppliedTwiceIsQuiet(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4}, []byte{2, 3, 0, 1})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		build := func(in []byte) Snapshot {
			s := Snapshot{}
			for i, x := range in {
				if state := State(x % 5); state != Absent {
					s.Add(string(rune('p'+i%3)), string(rune('a'+i%20)), Item{State: state, Sandbox: x&64 != 0})
				}
			}
			return s
		}
		old, now := build(a), build(b)
		if events := Diff(now, now); len(events) != 0 {
			t.Errorf("no change gave %v", events)
		}
		for _, ev := range Diff(old, now) {
			if old[ev.PodUID][ev.ID].State == now[ev.PodUID][ev.ID].State {
				t.Errorf("%v about what did not change", ev)
			}
		}
	})
}

func TestWhatRunsIsCounted(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry())
	m.count(Snapshot{
		"restarted": {"s1": {State: Exited, Sandbox: true}, "s2": {State: Running, Sandbox: true, Attempt: 1},
			"c1": {State: Exited, Name: "c"}, "c2": {State: Running, Name: "c", Attempt: 1}},
		"ended": {"s3": {State: Exited, Sandbox: true}, "c3": {State: Exited, Name: "c"}},
		"twice": {"s4": {State: Running, Sandbox: true}, "s5": {State: Running, Sandbox: true, Attempt: 1},
			"c4": {State: Created, Name: "c"}},
	})
	if got := testutil.ToFloat64(m.pods); got != 2 {
		t.Errorf("%v pods run, want 2", got)
	}
	for state, want := range map[string]float64{"created": 1, "running": 1, "exited": 2, "unknown": 0} {
		if got := testutil.ToFloat64(m.containers.WithLabelValues(state)); got != want {
			t.Errorf("%v containers are %s, want %v", got, state, want)
		}
	}
	m.count(Snapshot{})
	if got := testutil.ToFloat64(m.containers.WithLabelValues("exited")); got != 0 {
		t.Errorf("%v containers have exited where there is none", got)
	}
}
