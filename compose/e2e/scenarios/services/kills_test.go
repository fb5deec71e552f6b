package services

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestKills kills each process, one at a time and then all at once. No container notices.
func TestKills(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	var table strings.Builder
	for _, r := range scene.Processes {
		var starts []string
		for i := range scene.Kills {
			starts = append(starts, s.KillDuringStart(fmt.Sprintf("mid-%s-%d", r, i), r))
		}
		fmt.Fprintf(&table, "%-12s %s\n", r, strings.Join(starts, ", "))
	}
	var starts []string
	for i := range scene.Kills {
		starts = append(starts, s.KillDuringStart(fmt.Sprintf("mid-all-%d", i), scene.Processes...))
	}
	fmt.Fprintf(&table, "%-12s %s\n", "all at once", strings.Join(starts, ", "))
	age := w.LeaseAge()
	t.Logf("%d pods steady; SIGKILL of …: a pod created at that moment is Ready after …\n%sgreatest age of the Lease: %s",
		len(w.Pods), table.String(), scene.Milliseconds(age))
	w.Untouched()
	w.NodeReady()
	if age > scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, scene.MaxLeaseAge)
	}
}

// TestBusDown keeps the bus down: whatever process of it is started is killed at once. Everything
// but Events goes on meanwhile.
func TestBusDown(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	s.CreatePods(scene.ScriptPod("restarts", scene.Forever), scene.PausePod("goes"))
	s.WaitReady(scene.Patience, "restarts", "goes")
	release := s.HoldDown(role.Bus)
	time.Sleep(time.Second) // it is down and the others have noticed
	begin, down := time.Now(), s.Record.Mark()
	s.CreatePods(scene.PausePod("mid"))
	s.DeletePods("goes")
	s.EndContainer("restarts")
	// The bus is down until all of this has happened.
	s.WaitReady(scene.Patience, "mid")
	s.Wait(scene.Patience, "the end of a pod while the bus is down", s.AreGone("goes"))
	s.Wait(scene.Patience, "a container's restart while the bus is down", s.Restarted("restarts", 1))
	t.Logf("bus down: a pod is Ready after %s; all three things done after %s", scene.Milliseconds(s.StartTime("mid")),
		scene.Milliseconds(time.Since(begin)))
	s.Wait(scene.Patience, "a second renewal of the Lease while the bus is down",
		func(record.View) error { return s.LeaseRenewals(down, 2) })
	time.Sleep(time.Until(begin.Add(scene.Outage - time.Second)))
	release()
	s.WaitHealthy(t, scene.Patience)
	s.Wait(scene.Patience, "the event of a start while the bus was down", s.HasEvent("mid", "Started"))
	w.Untouched()
	w.NodeReady()
	if age := w.LeaseAge(); age > scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, scene.MaxLeaseAge)
	}
}
