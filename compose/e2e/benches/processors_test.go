//go:build bench

package benches

import (
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// Who uses the processors, as processors names them.
const (
	byAgent   = "the agent"
	byMachine = "the machine"
)

// processors is what has been used so far of the processors: by the agent, by each process of a service, by containerd
// and etcd and the API server, and by all of the machine.
func (m *meter) processors() map[string]time.Duration {
	m.t.Helper()
	pids := map[string][]int{}
	if !m.bare {
		pids[byAgent] = m.processes()
	}
	if !m.bare && scene.Shared.Agent() == rig.AgentMicrolet {
		for pid, name := range services() {
			pids[name] = []int{pid}
		}
	}
	for _, p := range scene.Shared.Status(m.t.Context()) {
		if p.Program == rig.APIServer || p.Program == rig.Containerd || p.Program == rig.Etcd {
			pids[p.Program] = []int{p.PID}
		}
	}
	all, err := machine.Used()
	if err != nil {
		m.t.Fatal(err)
	}
	used := map[string]time.Duration{byMachine: all}
	for name, group := range pids {
		used[name] = m.cpu(group)
	}
	return used
}

// services are the processes of microlet, each with the names of the services that it runs.
func services() map[int]string {
	names := map[int]string{}
	for _, r := range role.All() {
		pid := scene.Shared.PID(r)
		if pid == 0 {
			continue // it runs on demand, or is no process
		}
		if names[pid] != "" {
			names[pid] += "+"
		}
		names[pid] += string(r)
	}
	return names
}

// since is what has been used between two calls of processors. A process that has ended meanwhile is left out.
func since(before, now map[string]time.Duration) map[string]time.Duration {
	used := map[string]time.Duration{}
	for name, at := range now {
		if begin, ok := before[name]; ok {
			used[name] = at - begin
		}
	}
	return used
}
