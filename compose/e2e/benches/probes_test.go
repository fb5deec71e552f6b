//go:build bench

package benches

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
)

const (
	httpPods    = 60 // each with readiness and liveness
	execPods    = 30 // each with readiness
	probeRuns   = 7
	probeWindow = 10 * time.Second
	probeCalm   = 15 * time.Second // the last first probes and statuses
)

// execProbe asks for the same by a command.
var execProbe = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/www/ok"}}}

// TestBenchProbes measures what probes that run each second cost the agent. The commands themselves,
// and the servers that answer, are not its processes.
func TestBenchProbes(t *testing.T) {
	compare(t, func(m *meter) {
		m.warm()
		m.probes(fmt.Sprintf("%d pods, HTTP readiness and liveness each second", httpPods), httpPods,
			func(name string) *corev1.Pod {
				return scene.ProbedPod(name, scene.HTTPProbe)
			})
		m.probes(fmt.Sprintf("%d pods, exec each second", execPods), execPods, func(name string) *corev1.Pod {
			p := scene.ProbedPod(name, execProbe)
			p.Spec.Containers[0].LivenessProbe = nil
			return p
		})
	}, agents[:2]...)
}

func (m *meter) probes(with string, count int, pod func(name string) *corev1.Pod) {
	m.t.Helper()
	s := scene.New(m.t)
	var pods []*corev1.Pod
	var names []string
	for i := range count {
		p := pod(fmt.Sprintf("probed-%d", i))
		p.Spec.NodeName = scene.Shared.NodeName()
		pods, names = append(pods, p), append(names, p.Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(2*scene.Patience, names...)
	time.Sleep(probeCalm)
	w := s.Witness(names...)
	pids := m.processes()
	var cores, rates, each []float64
	for range probeRuns {
		probes, began := scene.Shared.ProbeTotal(m.t, ""), time.Now()
		used := m.cpu(pids)
		time.Sleep(probeWindow)
		used = m.cpu(pids) - used
		took := time.Since(began).Seconds()
		cores = append(cores, used.Seconds()/took)
		rates = append(rates, (scene.Shared.ProbeTotal(m.t, "")-probes)/took)
		each = append(each, 1000*cores[len(cores)-1]/rates[len(rates)-1])
	}
	m.t.Logf("%s: cores %.3f, probes a second %.1f", with, cores, rates)
	slices.Sort(cores)
	slices.Sort(rates)
	slices.Sort(each)
	m.put("CPU with "+with+" (cores)", cores[probeRuns/2])
	m.put("CPU for each probe with "+with+" (ms)", each[probeRuns/2])
	m.put("probes a second with "+with, rates[probeRuns/2])
	w.Untouched() // else it was no probe's cost that was measured
	s.DeleteAllPods()
}
