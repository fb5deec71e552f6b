package services

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// work is one thing that a node agent does, as a column of the table of stops.
type work string

const (
	podStarts  work = "pod starts"
	podDeleted work = "pod deleted"
	restart    work = "exit restarted"
	leaseGoes  work = "Lease renews"
	nodeStays  work = "node Ready"
	reported   work = "status reported"
	events     work = "Events"
)

var works = []work{podStarts, podDeleted, restart, leaseGoes, nodeStays, reported, events}

// mayWait is all that may not work while a process is stopped. What is not here must work.
var mayWait = map[role.Role][]work{
	// One heartbeat's silence is no proof of a hang, so the Lease goes on for 60 s.
	role.Podsync:    {podStarts, podDeleted, restart, reported, events},
	role.NodeStatus: {leaseGoes, nodeStays, events},
	role.Bus:        {events},
	role.PLEG:       nil,
	role.NodeAPI:    nil,
	role.Up:         nil,
}

// TestStops stops each process for a while with the watchdog off, and shows what still works.
func TestStops(t *testing.T) {
	withoutWatchdog(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	table := fmt.Sprintf("| stopped for %s |", stopTime)
	for _, c := range works {
		table += fmt.Sprintf(" %s |", c)
	}
	table += "\n|" + strings.Repeat("---|", len(works)+1) + "\n"
	for _, r := range stoppedRoles {
		row := stopped(s, r)
		table += fmt.Sprintf("| %s |", r)
		for _, c := range works {
			table += fmt.Sprintf(" %s |", row[c])
			if strings.HasPrefix(row[c], waits) && !slices.Contains(mayWait[r], c) {
				t.Errorf("%s stopped: %s: %s", r, c, row[c])
			}
		}
		table += "\n"
	}
	t.Logf("what works while a process is stopped by SIGSTOP, with the watchdog off:\n%s", table)
	w.Untouched()
}

// withoutWatchdog lets hung processes hang until the test ends, up itself too.
func withoutWatchdog(t *testing.T) {
	t.Helper()
	scene.Shared.EnsureUp(t)
	if err := scene.Shared.SetAgentWatchdog(-1); err != nil {
		t.Fatal(err)
	}
	scene.Shared.UseMicrolet(t, scene.WatchdogOff)
	t.Cleanup(func() { // before that of use, which starts the agent again
		if err := scene.Shared.SetAgentWatchdog(10 * time.Second); err != nil {
			t.Error(err)
		}
	})
}

// waits begins a cell of what did not work.
const waits = "waits"

// stopped stops a service for stopTime, or as long as what must work takes. It returns for each kind of work how long
// it took or that it waited.
func stopped(s *scene.Scene, r role.Role) map[work]string {
	s.T.Helper()
	name := func(what string) string { return what + "-" + string(r) }
	s.CreatePods(scene.ScriptPod(name("exits"), scene.Forever), scene.PausePod(name("goes")))
	s.WaitReady(scene.Patience, name("exits"), name("goes"))
	w := s.Witness()
	pid := s.MustPID(s.T, r)
	if err := s.SignalPIDs(syscall.SIGSTOP, pid); err != nil {
		s.T.Fatal(err)
	}
	// A failed scenario must not leave it stopped.
	s.T.Cleanup(func() { _ = s.SignalPIDs(syscall.SIGCONT, pid) })
	begin := time.Now()
	s.CreatePods(scene.PausePod(name("starts")))
	s.DeletePods(name("goes"))
	s.EndContainer(name("exits"))

	var again time.Time // the runtime has the exited container running again
	var row map[work]string
	for time.Since(begin) < stopTime || time.Since(begin) < scene.Patience && !worked(r, row) {
		if again.IsZero() && s.RunsAttempt(name("exits"), 1) == nil {
			again = time.Now()
		}
		time.Sleep(50 * time.Millisecond)
		row = rowOf(s, w, begin, again, name)
	}
	s.SyncRecord()
	row = rowOf(s, w, begin, again, name)
	if err := s.SignalPIDs(syscall.SIGCONT, pid); err != nil {
		s.T.Fatal(err)
	}

	// What waited is done when the process goes on.
	s.WaitReady(scene.Patience, name("starts"))
	s.Wait(scene.Patience, "the deletion that waited", s.AreGone(name("goes")))
	s.Wait(scene.Patience, "the restart that waited", s.Restarted(name("exits"), 1))
	s.Wait(scene.Patience, "the event that waited", s.HasEvent(name("starts"), "Started"))
	scene.Await(s.T, scene.Patience, "a fresh Lease",
		func() error { return s.LeaseRenewedSince(time.Now().Add(-scene.MaxLeaseAge)) })
	s.WaitHealthy(s.T, scene.Patience)
	s.DeletePods(name("starts"), name("exits"))
	return row
}

// rowOf is what has worked so far while a service is stopped.
func rowOf(s *scene.Scene, w *scene.Witness, begin, again time.Time, name func(string) string) map[work]string {
	now, entries := time.Now(), s.Record.Since(w.Mark)
	ready, gone, status, event := seen(s, entries, name)
	row := map[work]string{
		restart:    cell(again, begin),
		podStarts:  cell(ready, begin),
		podDeleted: cell(gone, begin),
		reported:   cell(status, begin),
		events:     cell(event, begin),
		leaseGoes:  "oldest " + scene.Milliseconds(record.LeaseAge(w.Lease, entries, now)).String(),
		nodeStays:  "stays",
	}
	if again.IsZero() {
		row[reported] = waits // there was nothing to report
	}
	// The first renewal may have been under way when the service was stopped.
	if s.LeaseRenewals(w.Mark, 2) != nil {
		row[leaseGoes] = waits + ", " + row[leaseGoes]
	}
	if len(record.NodeReady(entries)) > 0 {
		row[nodeStays] = waits + ", not Ready"
	}
	return row
}

// worked reports whether all has worked that must work while a service is stopped.
func worked(r role.Role, row map[work]string) bool {
	return !slices.ContainsFunc(works, func(c work) bool {
		return (row[c] == "" || strings.HasPrefix(row[c], waits)) && !slices.Contains(mayWait[r], c)
	})
}

// seen reports when the record saw the new pod Ready, the deleted one gone, the restart's status and the
// new pod's event; zero if it did not.
func seen(s *scene.Scene, entries []record.Entry, name func(string) string) (ready, gone, status, event time.Time) {
	first := func(t *time.Time, at time.Time) {
		if t.IsZero() {
			*t = at
		}
	}
	for i := range entries {
		v := record.Single(entries[i])
		if p := v.Pod(s.Namespace, name("starts")); p != nil && record.Ready(p) {
			first(&ready, entries[i].At)
		}
		if p := v.Pod(s.Namespace, name("goes")); p != nil && entries[i].Deleted {
			first(&gone, entries[i].At)
		}
		if v.Pod(s.Namespace, name("exits")) != nil && s.Restarted(name("exits"), 1)(v) == nil {
			first(&status, entries[i].At)
		}
		if s.HasEvent(name("starts"), "Started")(v) == nil {
			first(&event, entries[i].At)
		}
	}
	return ready, gone, status, event
}

func cell(at, begin time.Time) string {
	if at.IsZero() {
		return waits
	}
	return scene.Milliseconds(at.Sub(begin)).String()
}

// TestHungProcessesComeBack stops each process with the watchdog on.
func TestHungProcessesComeBack(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	for _, r := range hungRoles {
		s.WaitHealthy(t, scene.Patience)
		pid := s.MustPID(t, r)
		if err := s.SignalPIDs(syscall.SIGSTOP, pid); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		scene.Await(t, scene.Patience, "another process of "+string(r), func() error {
			if now := s.PID(r); now == 0 || now == pid {
				return fmt.Errorf("pid %d", now)
			}
			return s.Healthy(t.Context())
		})
		took := time.Since(begin)
		t.Logf("%s hung, and is back after %s", r, scene.Milliseconds(took))
	}
	s.CreatePods(scene.PausePod("after"))
	s.WaitReady(scene.Patience, "after")
	w.Untouched()
	w.NodeReady()
}
