//go:build bench

package benches

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/streamload"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// What is started with and without an audience, in turns, so that what else the machine does weighs on both.
const (
	turns    = 10
	perTurn  = 12
	betweens = 200 * time.Millisecond // between the end of one start and the next
)

// TestBenchAudience measures how much slower pods start while two hundred followers of logs and fifty sessions are
// served, some of which stop reading. It also shows which processes take the CPU time. The audience and the control
// plane, who are elsewhere on a real cluster, have processors of their own.
func TestBenchAudience(t *testing.T) {
	for _, a := range agents[:2] {
		t.Run(a.name, func(t *testing.T) {
			scene.Shared.SwitchTo(t, a.agent, a.args...)
			m := &meter{t: t}
			m.apart()
			m.warm()
			m.audience()
		})
	}
}

// apart gives the node one half of the processors, and the audience and the control plane the other. What is started
// later has that of who starts it. It ends with the test.
func (m *meter) apart() {
	m.t.Helper()
	all, err := machine.Processors()
	if err != nil {
		m.t.Fatal(err)
	}
	if len(all) < 2 {
		m.t.Fatal("the node and its audience need a processor each, and this machine has one")
	}
	others, node := all[:len(all)/2], all[len(all)/2:]
	for pid, processors := range m.places(node, others) {
		if err := machine.Pin(pid, processors...); err != nil {
			m.t.Fatal(err)
		}
	}
	m.t.Cleanup(func() {
		for pid := range m.places(all, all) {
			if err := machine.Pin(pid, all...); err != nil {
				m.t.Error(err)
			}
		}
	})
}

// places are the processors of every process that there is.
func (m *meter) places(node, others []int) map[int][]int {
	m.t.Helper()
	places := map[int][]int{os.Getpid(): others}
	for _, p := range scene.Shared.Status(m.t.Context()) {
		places[p.PID] = others
		if p.Program == rig.AgentProgram || p.Program == rig.Containerd {
			places[p.PID] = node
		}
	}
	if m.bare {
		return places
	}
	agent, err := scene.Shared.AgentPID()
	if err != nil {
		m.t.Error(err)
		return places
	}
	children, err := machine.Children(agent)
	if err != nil {
		m.t.Error(err)
	}
	for _, pid := range append(children, agent) {
		places[pid] = node
	}
	return places
}

// audience starts pods in turns without, with, with, without, … an audience.
func (m *meter) audience() {
	m.t.Helper()
	s := scene.New(m.t)
	streamload.CreatePods(s)
	var starts [2][]time.Duration
	var used [2]map[string]time.Duration
	var lasted [2]time.Duration
	var calls [2]map[string]mean
	for i := range 2 * turns {
		with := (i + 1) / 2 % 2
		var present *streamload.Load
		if with == 1 {
			present = streamload.Start(s, m.t)
		}
		time.Sleep(calmBefore)
		before, called, began := m.shares(), m.calls(startCalls...), time.Now()
		took := m.turn(s, fmt.Sprintf("turn-%d", i))
		starts[with] = append(starts[with], took...)
		lasted[with] += time.Since(began)
		if used[with] == nil {
			used[with], calls[with] = map[string]time.Duration{}, map[string]mean{}
		}
		for name, at := range m.calls(startCalls...) {
			calls[with][name] = calls[with][name].plus(at, 1).plus(called[name], -1)
		}
		for name, at := range m.shares() {
			used[with][name] += at - before[name]
		}
		m.t.Logf("turn %d of %d, with %d streams: p50 %s", i+1, 2*turns, with*streamload.Streams,
			scene.Milliseconds(record.Percentile(took, 0.5)))
		if present != nil {
			if problems := present.Faults(); len(problems) > 0 {
				m.t.Errorf("of the streams went wrong:\n%s", strings.Join(problems, "\n"))
			}
			present.Stop()
		}
	}
	table := fmt.Sprintf("| %s | alone | with %d streams | ratio |\n|---|---|---|---|\n", scene.Shared.Agent(),
		streamload.Streams)
	row := func(what string, alone, with float64) {
		table += fmt.Sprintf("| %s | %.3f | %.3f | %.2f |\n", what, alone, with, with/alone)
	}
	for _, part := range []float64{0.5, 0.99} {
		row(fmt.Sprintf("one pod, created to Ready, p%g of %d (s)", 100*part, len(starts[0])),
			record.Percentile(starts[0], part).Seconds(), record.Percentile(starts[1], part).Seconds())
	}
	for _, name := range slices.Sorted(maps.Keys(used[0])) {
		row("CPU of "+name+" (cores)", used[0][name].Seconds()/lasted[0].Seconds(),
			used[1][name].Seconds()/lasted[1].Seconds())
	}
	for _, name := range slices.Sorted(maps.Keys(calls[0])) {
		row("call "+name+" of the runtime, mean (s)", calls[0][name].value(), calls[1][name].value())
	}
	m.t.Logf("turn by turn in one run:\n%s", table)
	s.DeleteAllPods()
}

// turn starts pods one after the other, and deletes them.
func (m *meter) turn(s *scene.Scene, prefix string) []time.Duration {
	m.t.Helper()
	var starts []time.Duration
	var names []string
	for i := range perTurn {
		time.Sleep(betweens)
		name := fmt.Sprintf("%s-%d", prefix, i)
		s.CreatePods(bound(name))
		s.WaitReady(scene.Patience, name)
		starts, names = append(starts, s.StartTime(name)), append(names, name)
	}
	s.DeletePods(names...)
	s.Wait(scene.Patience, "the pods' end", s.AreGone(names...))
	return starts
}

// mean is one that is still being summed up.
type mean struct{ sum, count float64 }

func (a mean) plus(b mean, sign float64) mean {
	return mean{a.sum + sign*b.sum, a.count + sign*b.count}
}

func (a mean) value() float64 { return a.sum / a.count }

// startCalls are the calls of the runtime that start a pod.
var startCalls = []string{"run_podsandbox", "create_container", "start_container"}

// calls are those of the runtime, by name, as the agent has measured them so far.
func (m *meter) calls(names ...string) map[string]mean {
	m.t.Helper()
	families := m.metrics()
	all := map[string]mean{}
	for _, metric := range families["kubelet_runtime_operations_duration_seconds"].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "operation_type" &&
				slices.Contains(names, label.GetValue()) {
				h := metric.GetHistogram()
				all[label.GetValue()] = mean{h.GetSampleSum(), float64(h.GetSampleCount())}
			}
		}
	}
	return all
}

// metrics are those of the agent now, by name.
func (m *meter) metrics() map[string]*dto.MetricFamily {
	m.t.Helper()
	text, err := scene.Shared.API.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", scene.Shared.NodeName(),
		"proxy/metrics").Do(m.t.Context()).Raw()
	if err != nil {
		m.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		m.t.Fatal(err)
	}
	return families
}

// shares is what has been used so far by those who serve an audience, and by the audience.
func (m *meter) shares() map[string]time.Duration {
	m.t.Helper()
	pids := map[string][]int{"the agent": m.processes(), "the clients": {os.Getpid()}}
	for _, p := range scene.Shared.Status(m.t.Context()) {
		if p.Program == rig.APIServer || p.Program == rig.Containerd {
			pids[p.Program] = []int{p.PID}
		}
	}
	if scene.Shared.Agent() == rig.AgentMicrolet {
		for _, r := range []role.Role{role.NodeAPI, role.Podsync} {
			pids[string(r)] = []int{scene.Shared.MustPID(m.t, r)}
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
