//go:build !bench

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/record"
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
	s := newScene(t)
	w := s.steady()
	table := fmt.Sprintf("| stopped for %s |", stopTime)
	for _, c := range works {
		table += fmt.Sprintf(" %s |", c)
	}
	table += "\n|" + strings.Repeat("---|", len(works)+1) + "\n"
	for _, r := range stoppedRoles {
		row := s.stopped(r)
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
	w.untouched()
}

// withoutWatchdog lets hung processes hang until the test ends, up itself too.
func withoutWatchdog(t *testing.T) {
	t.Helper()
	if err := shared.SetAgentWatchdog(-1); err != nil {
		t.Fatal(err)
	}
	shared.use(t, watchdogOff)
	t.Cleanup(func() { // before that of use, which starts the agent again
		if err := shared.SetAgentWatchdog(10 * time.Second); err != nil {
			t.Error(err)
		}
	})
}

// waits begins a cell of what did not work.
const waits = "waits"

// stopped stops a service for stopTime, or as long as what must work takes, and tells for each kind of work how long it
// took or that it waited.
func (s *scene) stopped(r role.Role) map[work]string {
	s.t.Helper()
	name := func(what string) string { return what + "-" + string(r) }
	s.create(scripted(name("exits"), forever), plain(name("goes")))
	s.ready(patience, name("exits"), name("goes"))
	w := s.witness()
	pid := s.mustPID(s.t, r)
	if err := s.kill(syscall.SIGSTOP, pid); err != nil {
		s.t.Fatal(err)
	}
	// A failed scenario must not leave it stopped.
	s.t.Cleanup(func() { _ = s.kill(syscall.SIGCONT, pid) })
	begin := time.Now()
	s.create(plain(name("starts")))
	s.remove(name("goes"))
	s.endContainer(name("exits"))

	var again time.Time // the runtime has the exited container running again
	var row map[work]string
	for time.Since(begin) < stopTime || time.Since(begin) < patience && !worked(r, row) {
		if again.IsZero() && s.runsAttempt(name("exits"), 1) == nil {
			again = time.Now()
		}
		time.Sleep(50 * time.Millisecond)
		row = s.row(w, begin, again, name)
	}
	s.sync()
	row = s.row(w, begin, again, name)
	if err := s.kill(syscall.SIGCONT, pid); err != nil {
		s.t.Fatal(err)
	}

	// What waited is done when the process goes on.
	s.ready(patience, name("starts"))
	s.wait(patience, "the deletion that waited", s.areGone(name("goes")))
	s.wait(patience, "the restart that waited", s.restarted(name("exits"), 1))
	s.wait(patience, "the event that waited", s.hasEvent(name("starts"), "Started"))
	await(s.t, patience, "a fresh Lease", func() error { return s.fresh(time.Now().Add(-maxLease)) })
	s.waitHealthy(s.t, patience)
	s.remove(name("starts"), name("exits"))
	return row
}

// row is what has worked so far while a service is stopped.
func (s *scene) row(w *witness, begin, again time.Time, name func(string) string) map[work]string {
	now, entries := time.Now(), s.record.Since(w.mark)
	ready, gone, status, event := seen(s, entries, name)
	row := map[work]string{
		restart:    cell(again, begin),
		podStarts:  cell(ready, begin),
		podDeleted: cell(gone, begin),
		reported:   cell(status, begin),
		events:     cell(event, begin),
		leaseGoes:  "oldest " + ms(record.LeaseAge(w.lease, entries, now)).String(),
		nodeStays:  "stays",
	}
	if again.IsZero() {
		row[reported] = waits // there was nothing to report
	}
	// The first renewal may have been under way when the service was stopped.
	if s.renewals(w.mark, 2) != nil {
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

// fresh returns nil when the Lease was renewed after a time.
func (s *scene) fresh(after time.Time) error {
	if renewed := s.record.View().Lease().Spec.RenewTime.Time; renewed.Before(after) {
		return fmt.Errorf("it was renewed last %s ago", ms(time.Since(renewed)))
	}
	return nil
}

// seen tells when the record saw the new pod Ready, the deleted one gone, the restart's status and the
// new pod's event; zero if it did not.
func seen(s *scene, entries []record.Entry, name func(string) string) (ready, gone, status, event time.Time) {
	first := func(t *time.Time, at time.Time) {
		if t.IsZero() {
			*t = at
		}
	}
	for i := range entries {
		v := record.Single(entries[i])
		if p := v.Pod(s.ns, name("starts")); p != nil && record.Ready(p) {
			first(&ready, entries[i].At)
		}
		if p := v.Pod(s.ns, name("goes")); p != nil && entries[i].Deleted {
			first(&gone, entries[i].At)
		}
		if v.Pod(s.ns, name("exits")) != nil && s.restarted(name("exits"), 1)(v) == nil {
			first(&status, entries[i].At)
		}
		if s.hasEvent(name("starts"), "Started")(v) == nil {
			first(&event, entries[i].At)
		}
	}
	return ready, gone, status, event
}

func cell(at, begin time.Time) string {
	if at.IsZero() {
		return waits
	}
	return ms(at.Sub(begin)).String()
}

// TestHungProcessesComeBack stops each process with the watchdog on.
func TestHungProcessesComeBack(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	for _, r := range hungRoles {
		s.waitHealthy(t, patience)
		pid := s.mustPID(t, r)
		if err := s.kill(syscall.SIGSTOP, pid); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		await(t, patience, "another process of "+string(r), func() error {
			if now := s.pid(r); now == 0 || now == pid {
				return fmt.Errorf("pid %d", now)
			}
			return s.healthy(t.Context())
		})
		took := time.Since(begin)
		t.Logf("%s hung, and is back after %s", r, ms(took))
	}
	s.create(plain("after"))
	s.ready(patience, "after")
	w.untouched()
	w.nodeReady()
}
