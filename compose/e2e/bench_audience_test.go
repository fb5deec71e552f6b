//go:build bench

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// What is started with and without an audience, in turns, so that what else the machine does weighs on both.
const (
	turns    = 12
	perTurn  = 10
	betweens = 200 * time.Millisecond // between the end of one start and the next
)

// TestBenchAudience measures how much slower pods start while two hundred followers of logs and fifty sessions are
// served, some of which stop reading, and whose CPU that takes.
func TestBenchAudience(t *testing.T) {
	table := "| what | " + "alone | with an audience | ratio |\n|---|---|---|---|\n"
	for _, a := range agents[:2] {
		shared.switchTo(t, a.agent, a.args...)
		m := &meter{t: t}
		m.warm()
		s := newScene(t)
		s.stage()
		starts := map[bool][]time.Duration{}
		used := map[string]time.Duration{}
		var lasted time.Duration
		for i := range 2 * turns {
			// Which comes first changes, too: without, with, with, without, …
			with := i%4 == 1 || i%4 == 2
			var present *audience
			if with {
				present = s.gather(t)
			}
			time.Sleep(time.Second)
			before, began := m.shares(), time.Now()
			starts[with] = append(starts[with], m.turn(s, fmt.Sprintf("turn-%d", i))...)
			if with {
				lasted += time.Since(began)
				for name, at := range m.shares() {
					used[name] += at - before[name]
				}
				if problems := present.complaints(); len(problems) > 0 {
					t.Errorf("of the streams went wrong:\n%s", strings.Join(problems, "\n"))
				}
				present.dismiss()
			}
			time.Sleep(time.Second)
		}
		for _, part := range []float64{0.5, 0.99} {
			alone, with := record.Percentile(starts[false], part), record.Percentile(starts[true], part)
			table += fmt.Sprintf("| %s: one pod, created to Ready, p%g of %d (s) | %.3f | %.3f | %.2f |\n", a.name, 100*part, len(starts[true]), alone.Seconds(), with.Seconds(), with.Seconds()/alone.Seconds())
		}
		for _, name := range []string{"agent", string(role.NodeAPI), string(role.Podsync), rig.APIServer, rig.Containerd, "clients"} {
			if cpu, ok := used[name]; ok {
				table += fmt.Sprintf("| %s: CPU of %s with an audience (cores) | | %.3f | |\n", a.name, name, cpu.Seconds()/lasted.Seconds())
			}
		}
		s.clear()
	}
	t.Logf("%d streams, turn by turn in one run:\n%s", streams, table)
}

// turn starts pods one after the other, and deletes them.
func (m *meter) turn(s *scene, prefix string) []time.Duration {
	m.t.Helper()
	var starts []time.Duration
	var names []string
	for i := range perTurn {
		time.Sleep(betweens)
		name := fmt.Sprintf("%s-%d", prefix, i)
		s.create(bound(name))
		s.ready(patience, name)
		starts, names = append(starts, s.startTime(name)), append(names, name)
	}
	s.remove(names...)
	s.wait(patience, "the pods' end", s.areGone(names...))
	return starts
}

// shares is what has been used so far by those who serve an audience, and by the audience.
func (m *meter) shares() map[string]time.Duration {
	m.t.Helper()
	pids := map[string][]int{"agent": m.processes(), "clients": {os.Getpid()}}
	for _, p := range shared.Status(m.t.Context()) {
		if p.Program == rig.APIServer || p.Program == rig.Containerd {
			pids[p.Program] = []int{p.PID}
		}
	}
	if shared.Agent() == rig.AgentMicrolet {
		for _, r := range []role.Role{role.NodeAPI, role.Podsync} {
			pids[string(r)] = []int{shared.mustPID(m.t, r)}
		}
	}
	all := map[string]time.Duration{}
	for name, group := range pids {
		for _, pid := range group {
			used, err := machine.CPU(pid)
			if err != nil {
				m.t.Fatalf("%s has ended: %v", name, err)
			}
			all[name] += used
		}
	}
	return all
}
