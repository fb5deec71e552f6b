package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// compactProcesses are the services of the compact placement, by the processes that hold them.
var compactProcesses = [][]role.Role{
	{role.Bus, role.NodeStatus}, {role.Podsync},
	{role.PLEG, role.Prober, role.ImageGC, role.Stats, role.Evictor},
	{role.NodeAPI},
}

// TestPlacements runs a node whose services share processes, kills each of these, and then changes the placement under
// its pods. No container notices.
func TestPlacements(t *testing.T) {
	scene.Shared.UseMicrolet(t, scene.CompactPlacement)
	s := scene.New(t)
	s.CreatePods(scene.ScriptPod("talks", "echo said; "+scene.Forever))
	s.WaitReady(scene.Patience, "talks")
	talks, w := s.Witness("talks"), s.CreateSteadyPods()
	sharesProcesses(t, compactProcesses)
	for _, killed := range compactProcesses {
		others := pidsOf(t, killed)
		took := s.KillDuringStart("mid-"+string(killed[0]), killed[len(killed)-1])
		t.Logf("SIGKILL of the process of %v: a pod created at that moment is Ready after %s", killed, took)
		for r, before := range others {
			if now := s.MustPID(t, r); now != before {
				t.Errorf("%s had pid %d, and %d after the process of %v was killed", r, before, now, killed)
			}
		}
		sharesProcesses(t, compactProcesses)
	}
	for i, placement := range []string{
		scene.ProcessesPlacement, scene.CompactPlacement, scene.SinglePlacement, scene.CompactPlacement,
		scene.ProcessesPlacement,
	} {
		scene.Shared.SwitchTo(t, rig.AgentMicrolet, placement)
		switch placement {
		case scene.CompactPlacement:
			sharesProcesses(t, compactProcesses)
		case scene.ProcessesPlacement:
			sharesProcesses(t, [][]role.Role{{role.Bus}, {role.PLEG}, {role.Prober}, {role.NodeStatus}, {role.Stats}})
		}
		name := fmt.Sprintf("after-%d", i)
		s.CreatePods(scene.PausePod(name))
		s.WaitReady(scene.Patience, name)
		s.KubectlPrints("said\n", "logs", "talks")
		s.KubectlPrints("", "exec", "talks", "--", "true")
		s.DeletePods(name)
	}
	talks.Untouched()
	w.Untouched()
	w.NodeReady()
	if age := w.LeaseAge(); age > scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, scene.MaxLeaseAge)
	}
}

// pidsOf are the processes of all services but those.
func pidsOf(t *testing.T, without []role.Role) map[role.Role]int {
	t.Helper()
	pids := map[role.Role]int{}
	for _, r := range scene.Services {
		if !slices.Contains(without, r) {
			pids[r] = scene.Shared.MustPID(t, r)
		}
	}
	return pids
}

// sharesProcesses judges that "microlet status" shows these services with the same pid, and those of other processes
// with others, and what they share.
func sharesProcesses(t *testing.T, processes [][]role.Role) {
	t.Helper()
	all, err := scene.Shared.ProcessStatuses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]string{}
	for _, services := range processes {
		var names []string
		for _, r := range services {
			names = append(names, string(r))
		}
		name := strings.Join(names, "+")
		for _, r := range services {
			p := all[r]
			if other := seen[p.PID]; other != "" && other != name || p.State != "ready" ||
				p.Group != name && len(services) > 1 || p.Group != "" && len(services) == 1 {
				t.Errorf("%s is %+v, which %s has too; want the process %s", r, p, other, name)
			}
			seen[p.PID] = name
		}
	}
	if len(seen) != len(processes) {
		t.Errorf("there are %d processes, want %d: %v", len(seen), len(processes), seen)
	}
}
