package tracker

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

func parse(t *testing.T, c threshold.Config) []threshold.Threshold {
	t.Helper()
	all, err := threshold.Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func names(all []threshold.Threshold) (out []string) {
	for _, t := range all {
		out = append(out, string(t.Signal))
	}
	return out
}

var start = time.Unix(1_700_000_000, 0)

// node gives observations of 1000 of each.
func node(at time.Time, available map[signal.Signal]int64) threshold.Observations {
	seen := threshold.Observations{}
	for s, n := range available {
		seen[s] = threshold.Observation{Available: n, Capacity: 1000, Time: at}
	}
	return seen
}

func TestGraceReclaimAndTransition(t *testing.T) {
	all := parse(t, threshold.Config{
		Hard: map[string]string{"memory.available": "100"}, Soft: map[string]string{"memory.available": "300"},
		SoftGracePeriod: map[string]string{"memory.available": "1m"},
		MinimumReclaim:  map[string]string{"memory.available": "50"},
	})
	tr := New(5 * time.Minute)
	for _, step := range []struct {
		at        time.Duration
		available int64
		due       int
		under     bool
	}{
		{0, 500, 0, false},
		{10 * time.Second, 299, 0, true},                   // soft, in its grace period
		{20 * time.Second, 300, 0, true},                   // over; the condition stays
		{30 * time.Second, 200, 0, true},                   // the grace period starts again
		{80 * time.Second, 200, 0, true},                   // 50 s
		{90 * time.Second, 200, 1, true},                   // 60 s
		{91 * time.Second, 99, 2, true},                    // and hard
		{92 * time.Second, 140, 2, true},                   // the hard one lacks its reclaim
		{93 * time.Second, 160, 1, true},                   // it has it; soft still
		{94 * time.Second, 340, 1, true},                   // soft lacks its reclaim
		{95 * time.Second, 350, 0, true},                   // all over
		{94*time.Second + 5*time.Minute - 1, 900, 0, true}, // within the transition period
		{94*time.Second + 5*time.Minute, 900, 0, false},
	} {
		now := start.Add(step.at)
		due := tr.Update(all, node(now, map[signal.Signal]int64{signal.MemoryAvailable: step.available}), now)
		if len(due) != step.due || tr.Under(v1.NodeMemoryPressure, now) != step.under {
			t.Errorf("at %v with %d: due %q, under pressure %t; want %d, %t", step.at, step.available, names(due),
				tr.Under(v1.NodeMemoryPressure, now), step.due, step.under)
		}
	}
}

func TestMemoryIsFirstAndOldReadingsCountOnce(t *testing.T) {
	all := parse(t, threshold.Config{Hard: map[string]string{"imagefs.available": "10%", "memory.available": "10%",
		"pid.available": "10%"}})
	tr := New(0)
	seen := node(start, map[signal.Signal]int64{signal.MemoryAvailable: 1, signal.ImageFsAvailable: 1,
		signal.PIDAvailable: 1})
	if got := names(tr.Update(all, seen, start)); !slices.Equal(got,
		[]string{"memory.available", "imagefs.available", "pid.available"}) {
		t.Errorf("due %q", got)
	}
	if got := names(tr.Update(all, seen, start)); len(got) != 3 {
		t.Errorf("nothing was done, and due is %q", got)
	}
	tr.Acted(seen)
	seen[signal.MemoryAvailable] = threshold.Observation{Available: 1, Capacity: 1000, Time: start.Add(time.Second)}
	if got := names(tr.Update(all, seen, start.Add(time.Second))); !slices.Equal(got, []string{"memory.available"}) {
		t.Errorf("with one new reading due %q", got)
	}
	if !tr.Under(v1.NodeDiskPressure, start.Add(time.Second)) {
		t.Error("the disk is full still")
	}
}

func TestARestartKeepsTheCondition(t *testing.T) {
	tr := New(5 * time.Minute)
	tr.Adopt(v1.NodeMemoryPressure, start.Add(-time.Minute), start)
	tr.Adopt(v1.NodeDiskPressure, start.Add(time.Hour), start) // another clock's
	if !tr.Under(v1.NodeMemoryPressure, start) || tr.Under(v1.NodeDiskPressure, start) {
		t.Error("the condition of before is not kept, or one of the future is")
	}
	if tr.Under(v1.NodeMemoryPressure, start.Add(4*time.Minute)) {
		t.Error("it stays longer than before the restart")
	}
}
