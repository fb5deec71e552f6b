//go:build bench

package benches

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	// costSingles pods are started and ended one after the other, and batch at once.
	costSingles = 20
	// costAfter is how long what a pod's end leaves to do may take, such as its Events.
	costAfter = 5 * time.Second
	// costsFile is the name of the file with the table's figures, in the folder of the test's artifacts.
	costsFile = "costs.json"
)

// TestBenchCosts counts what the start and the end of a pod cost: requests and bytes to the API server, calls of the
// runtime, messages of the bus, wakes and CPU of each process. With MICROLET_BEFORE, it counts another build besides.
func TestBenchCosts(t *testing.T) {
	contenders := []contender{agents[0], agents[1]}
	if path := os.Getenv("MICROLET_BEFORE"); path != "" {
		contenders = slices.Insert(contenders, 1, contender{name: "before", agent: rig.AgentMicrolet, build: path})
	}
	var columns []string
	all := map[string]map[string]float64{}
	for _, c := range contenders {
		if c.build != "" {
			switchToBuild(scene.Shared, t, c.build)
		} else {
			scene.Shared.SwitchTo(t, c.agent, c.args...)
		}
		m := &meter{t: t}
		m.warm()
		time.Sleep(30 * time.Second) // what an agent does after its start is no pod's cost
		for _, way := range []struct {
			name  string
			pods  int
			costs func() costs
		}{
			{"one by one", costSingles, m.costsOfSingles}, {"at once", batch, m.costsOfBatch},
		} {
			column := c.name + ", " + way.name
			columns = append(columns, column)
			all[column] = way.costs().each(way.pods)
		}
	}
	t.Logf("what the start and the end of a pod cost, %d pods one by one and %d at once:\n%s", costSingles, batch,
		costTable(columns, all))
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.ArtifactDir(), costsFile)
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log("the same figures are in", file)
}

func (m *meter) costsOfSingles() costs {
	m.t.Helper()
	s := scene.New(m.t)
	return m.count(func() {
		for i := range costSingles {
			name := fmt.Sprintf("one-%d", i)
			s.CreatePods(bound(name))
			s.WaitReady(scene.Patience, name)
			s.DeletePods(name)
			s.Wait(scene.Patience, "the pod's end", s.AreGone(name))
		}
	})
}

func (m *meter) costsOfBatch() costs {
	m.t.Helper()
	s := scene.New(m.t)
	return m.count(func() { m.batch(s, func(p *corev1.Pod) *corev1.Pod { return p }) })
}

// costs are amounts, each by what it is of.
type costs map[string]float64

func (c costs) each(pods int) map[string]float64 {
	for name := range c {
		c[name] /= float64(pods)
	}
	return c
}

// count counts what f costs.
func (m *meter) count(f func()) costs {
	m.t.Helper()
	processes := m.named()
	counted := m.counters()
	began := time.Now()
	traffic := m.traffic(processes)
	use := m.use(processes)
	f()
	time.Sleep(costAfter)
	c := costs{}
	for name, after := range m.use(processes) {
		used := after.Sub(use[name])
		for _, of := range []string{name, "all processes"} {
			c["CPU (ms): "+of] += float64(used.CPU.Microseconds()) / 1000
			c["wakes: "+of] += float64(used.Waits)
			c["preempted: "+of] += float64(used.Preempted)
		}
	}
	for inode, after := range m.traffic(processes) {
		c["API bytes sent"] += float64(after.Sent - traffic[inode].Sent)
		c["API bytes received"] += float64(after.Received - traffic[inode].Received)
	}
	m.addRequests(c, began)
	for name, after := range m.counters() {
		if used := after - counted[name]; used > 0 {
			c[name] += used
			if kind, _, ok := strings.Cut(name, ": "); ok {
				c[kind+": all"] += used
			}
		}
	}
	return c
}

// named are the agent's processes and their children, by their names.
func (m *meter) named() map[int]string {
	m.t.Helper()
	names := map[int]string{}
	for _, pid := range m.processes() {
		names[pid] = "up"
		if scene.Shared.Agent() == rig.AgentKubelet {
			names[pid] = "kubelet"
		}
	}
	if scene.Shared.Agent() == rig.AgentKubelet {
		return names
	}
	for _, r := range role.All() {
		pid := scene.Shared.PID(r)
		if pid == 0 {
			continue
		}
		names[pid] = string(r)
		if r == role.Up {
			continue
		}
		children, err := machine.Children(pid)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, child := range children {
			names[child] = "children of " + string(r)
		}
	}
	return names
}

func (m *meter) use(processes map[int]string) map[string]machine.Use {
	m.t.Helper()
	all := map[string]machine.Use{}
	for pid, name := range processes {
		used, err := machine.ReadUse(pid)
		if err != nil && strings.HasPrefix(name, "children of ") {
			continue // it is there only while it is needed
		}
		if err != nil {
			m.t.Fatalf("a process of the agent has ended: %v", err)
		}
		sum := all[name]
		all[name] = machine.Use{CPU: sum.CPU + used.CPU, Waits: sum.Waits + used.Waits,
			Preempted: sum.Preempted + used.Preempted}
	}
	return all
}

func (m *meter) traffic(processes map[int]string) map[uint32]machine.Traffic {
	m.t.Helper()
	found, err := machine.Connections(slices.Collect(maps.Keys(processes)), rig.APIPort)
	if err != nil {
		m.t.Fatal(err)
	}
	return found
}

// addRequests adds the node's requests to the API server. A watch is one when it ends.
func (m *meter) addRequests(c costs, after time.Time) {
	m.t.Helper()
	requests, err := scene.Shared.AuditedRequests(after)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, r := range requests {
		if !strings.HasPrefix(r.User.Username, "system:node:") {
			continue
		}
		about := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			about += "/" + r.ObjectRef.Subresource
		}
		c["API requests: "+r.Verb+" "+about]++
		c["API requests: all"]++
	}
}

// counters are those of the agent that count calls and messages.
func (m *meter) counters() map[string]float64 {
	m.t.Helper()
	families := m.metrics()
	all := map[string]float64{}
	for _, c := range []struct {
		family, title string
		labels        []string
	}{
		{"kubelet_runtime_operations_total", "CRI calls", []string{"operation_type"}},
		{"microlet_cri_gateway_calls_total", "gateway calls", []string{"role", "method"}},
		{"microlet_bus_puts_total", "bus puts", []string{"bucket"}},
		{"microlet_outbox_recorded_events_total", "Events: recorded", nil},
		{"microlet_bus_received_messages_total", "bus messages: in", nil},
		{"microlet_bus_sent_messages_total", "bus messages: out", nil},
		{"microlet_bus_received_bytes_total", "bus bytes: in", nil},
		{"microlet_bus_sent_bytes_total", "bus bytes: out", nil},
	} {
		for _, metric := range families[c.family].GetMetric() {
			values := []string{}
			for _, name := range c.labels {
				for _, label := range metric.GetLabel() {
					if label.GetName() == name {
						values = append(values, label.GetValue())
					}
				}
			}
			name := c.title
			if len(values) > 0 {
				name += ": " + strings.Join(values, " ")
			}
			all[name] += metric.GetCounter().GetValue()
		}
	}
	return all
}

// costTable has a row for each cost, in their order, and a column for each way.
func costTable(columns []string, all map[string]map[string]float64) string {
	rows := map[string]bool{}
	for _, values := range all {
		for name := range values {
			rows[name] = true
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| a pod's | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		table.WriteString("| " + row)
		for _, column := range columns {
			table.WriteString(" | " + strconv.FormatFloat(all[column][row], 'f', 2, 64))
		}
		table.WriteString(" |\n")
	}
	return table.String()
}
