package services

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/frozen"
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
	thawed     work = "pod starts after a thaw"
)

var works = []work{podStarts, podDeleted, restart, leaseGoes, nodeStays, reported, events, thawed}

// mayWait is all that may not work while a process is stopped. What is not here must work.
var mayWait = map[role.Role][]work{
	// One heartbeat's silence is no proof of a hang, so the Lease goes on for 60 s.
	role.Podsync:    {podStarts, podDeleted, restart, reported, events, thawed},
	role.NodeStatus: {leaseGoes, nodeStays, events},
	role.Bus:        {events},
	role.PLEG:       nil,
	role.NodeAPI:    nil,
	role.Up:         nil,
}

// TestStops stops each process for a while with the watchdog off, and shows what still works. At first a file system is
// frozen besides, which a pod waits for.
func TestStops(t *testing.T) {
	withoutWatchdog(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	f := frozen.Disk(t, t.TempDir())
	table := fmt.Sprintf("| stopped for %s |", stopTime)
	for _, c := range works {
		table += fmt.Sprintf(" %s |", c)
	}
	table += "\n|" + strings.Repeat("---|", len(works)+1) + "\n"
	for _, r := range stoppedRoles {
		row := stopped(s, f, r)
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

// moments are when something happened while a service is stopped. One that is zero has not happened.
type moments struct {
	// begin is the stop, thaw that of the file system.
	begin, thaw time.Time
	// again is when the runtime had the exited container running again.
	again time.Time
}

// stopped stops a service for stopTime, or as long as what must work takes. It returns for each kind of work how long
// it took or that it waited.
func stopped(s *scene.Scene, f *frozen.FileSystem, r role.Role) map[work]string {
	s.T.Helper()
	name := func(what string) string { return what + "-" + string(r) }
	s.CreatePods(scene.ScriptPod(name("exits"), scene.Forever), scene.PausePod(name("goes")))
	s.WaitReady(scene.Patience, name("exits"), name("goes"))
	freeze(s, f, name("thawed"))
	w := s.Witness()
	pid := s.MustPID(s.T, r)
	if err := s.SignalPIDs(syscall.SIGSTOP, pid); err != nil {
		s.T.Fatal(err)
	}
	// A failed scenario must not leave it stopped.
	s.T.Cleanup(func() { _ = s.SignalPIDs(syscall.SIGCONT, pid) })
	m := moments{begin: time.Now()}
	s.CreatePods(scene.PausePod(name("starts")))
	s.DeletePods(name("goes"))
	s.EndContainer(name("exits"))

	var row map[work]string
	for time.Since(m.begin) < stopTime || time.Since(m.begin) < scene.Patience && !worked(r, row) {
		if m.again.IsZero() && s.RunsAttempt(name("exits"), 1) == nil {
			m.again = time.Now()
		}
		if m.thaw.IsZero() && time.Since(m.begin) > stopTime/3 {
			m.thaw = time.Now()
			f.Thaw()
		}
		time.Sleep(50 * time.Millisecond)
		row = rowOf(s, w, m, name)
	}
	s.SyncRecord()
	row = rowOf(s, w, m, name)
	if err := s.SignalPIDs(syscall.SIGCONT, pid); err != nil {
		s.T.Fatal(err)
	}

	// What waited is done when the process goes on.
	s.WaitReady(scene.Patience, name("starts"), name("thawed"))
	s.Wait(scene.Patience, "the deletion that waited", s.AreGone(name("goes")))
	s.Wait(scene.Patience, "the restart that waited", s.Restarted(name("exits"), 1))
	s.Wait(scene.Patience, "the event that waited", s.HasEvent(name("starts"), "Started"))
	scene.Await(s.T, scene.Patience, "a fresh Lease",
		func() error { return s.LeaseRenewedSince(time.Now().Add(-scene.MaxLeaseAge)) })
	s.WaitHealthy(s.T, scene.Patience)
	s.DeletePods(name("starts"), name("exits"), name("thawed"))
	return row
}

// freeze freezes a file system, and has a pod wait for it.
func freeze(s *scene.Scene, f *frozen.FileSystem, pod string) {
	s.T.Helper()
	f.Freeze()
	s.CreatePods(scene.WithHostFolder(scene.PausePod(pod), filepath.Join(f.Dir, pod)))
	scene.Await(s.T, scene.Patience, "a process that waits for the frozen file system", func() error {
		if len(scene.HungMounters(s.T)) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
}

// rowOf is what has worked so far while a service is stopped.
func rowOf(s *scene.Scene, w *scene.Witness, m moments, name func(string) string) map[work]string {
	now, entries := time.Now(), s.Record.Since(w.Mark)
	is := seen(s, entries, name)
	row := map[work]string{
		restart:    cell(m.again, m.begin),
		podStarts:  cell(is.ready, m.begin),
		podDeleted: cell(is.gone, m.begin),
		reported:   cell(is.status, m.begin),
		events:     cell(is.event, m.begin),
		thawed:     cell(is.thawed, m.thaw),
		leaseGoes:  "oldest " + scene.Milliseconds(record.LeaseAge(w.Lease, entries, now)).String(),
		nodeStays:  "stays",
	}
	if m.again.IsZero() {
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

// sights are when the record saw the new pod Ready, the deleted one gone, the restart's status, the new pod's Event,
// and the pod Ready that waited for the frozen file system. One that is zero was not seen.
type sights struct{ ready, gone, status, event, thawed time.Time }

func seen(s *scene.Scene, entries []record.Entry, name func(string) string) (is sights) {
	first := func(t *time.Time, at time.Time) {
		if t.IsZero() {
			*t = at
		}
	}
	for i := range entries {
		v := record.Single(entries[i])
		if p := v.Pod(s.Namespace, name("starts")); p != nil && record.Ready(p) {
			first(&is.ready, entries[i].At)
		}
		if p := v.Pod(s.Namespace, name("thawed")); p != nil && record.Ready(p) {
			first(&is.thawed, entries[i].At)
		}
		if p := v.Pod(s.Namespace, name("goes")); p != nil && entries[i].Deleted {
			first(&is.gone, entries[i].At)
		}
		if v.Pod(s.Namespace, name("exits")) != nil && s.Restarted(name("exits"), 1)(v) == nil {
			first(&is.status, entries[i].At)
		}
		if s.HasEvent(name("starts"), "Started")(v) == nil {
			first(&is.event, entries[i].At)
		}
	}
	return is
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
