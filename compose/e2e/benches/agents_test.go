//go:build bench

package benches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// What is measured in a round, some of it several times: the median counts.
const (
	singles    = 10              // pods one after the other
	pause      = 2 * time.Second // between them
	batch      = 50              // pods at once
	batchRuns  = 3               // where there is one round
	idlePods   = 60
	idleTime   = 30 * time.Second // over which CPU is counted
	killRuns   = 5
	settle     = time.Minute     // after the start of an agent
	calmBefore = 5 * time.Second // what was started before has come to rest
)

// agents in the order in which they are measured.
var agents = []contender{
	{name: "kubelet", agent: rig.AgentKubelet},
	{name: "microlet", agent: rig.AgentMicrolet},
	{name: "microlet, compact", agent: rig.AgentMicrolet, args: []string{scene.CompactPlacement}},
	{name: "microlet, single", agent: rig.AgentMicrolet, args: []string{scene.SinglePlacement}},
}

// rowSingle is a pod that starts alone. With the runtime alone, it is Ready when its container has started.
const rowSingle = "one pod, created to Ready, p50 (s)"

// runtimeAlone is the runtime without an agent, which no agent can be faster than.
var runtimeAlone = contender{name: "runtime alone", bare: true}

// TestBenchAgents measures each agent on the same node, and the runtime alone, in rounds, and prints one table.
func TestBenchAgents(t *testing.T) {
	measureInRounds(t, *rounds, func(m *meter) {
		if *oneCore {
			m.apart()
		}
		m.undisturbed(1)
	}, append(slices.Clone(agents), runtimeAlone)...)
}

// TestBenchKills measures pods that are created while the agent is killed.
func TestBenchKills(t *testing.T) {
	compare(t, func(m *meter) {
		m.warm()
		m.kills()
	}, agents...)
}

// undisturbed measures an agent that nothing kills, or the runtime alone.
func (m *meter) undisturbed(runs int) {
	if m.bare {
		m.bareSingles()
		m.bareBatches(runs)
		return
	}
	m.warm()
	m.calm()
	m.idle("0 pods")
	m.singles()
	m.batches(runs)
	m.crowded()
}

// meter measures the agent that runs, or the runtime alone.
type meter struct {
	t   *testing.T
	put func(name string, value float64)
	// bare says that no agent runs.
	bare bool
}

// calm waits until the agent's start is over, for everything that it does once.
func (m *meter) calm() { time.Sleep(settle) }

// bound is a pause pod that is bound to the node at once, so that no scheduler is measured.
func bound(name string) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.NodeName = scene.Shared.NodeName()
	return p
}

// warm makes the image present.
func (m *meter) warm() {
	m.t.Helper()
	s := scene.New(m.t)
	s.CreatePods(bound("warm"))
	s.WaitReady(scene.Patience, "warm")
	s.DeleteAllPods()
}

func (m *meter) singles() {
	m.t.Helper()
	s := scene.New(m.t)
	var starts []time.Duration
	for i := range singles {
		time.Sleep(pause)
		name := fmt.Sprintf("one-%d", i)
		s.CreatePods(bound(name))
		s.WaitReady(scene.Patience, name)
		starts = append(starts, s.StartTime(name))
	}
	m.put(rowSingle, record.Percentile(starts, 0.5).Seconds())
	s.DeleteAllPods()
}

// batches starts and deletes many pods at once.
func (m *meter) batches(count int) {
	m.t.Helper()
	var runs []batchTimes
	for range count {
		time.Sleep(calmBefore)
		runs = append(runs, m.batch(scene.New(m.t), func(p *corev1.Pod) *corev1.Pod { return p }))
	}
	m.putBatches("pods", runs)
	m.putProcessors(runs)
}

// putProcessors puts the medians of what batches take of the processors.
func (m *meter) putProcessors(runs []batchTimes) {
	m.t.Helper()
	names := slices.Sorted(maps.Keys(runs[0].starting))
	for _, way := range []struct {
		name string
		of   func(batchTimes) map[string]time.Duration
	}{
		{"starting", func(b batchTimes) map[string]time.Duration { return b.starting }},
		{"deleting", func(b batchTimes) map[string]time.Duration { return b.deleting }},
	} {
		for _, name := range names {
			var all []time.Duration
			for _, r := range runs {
				all = append(all, way.of(r)[name])
			}
			m.put(fmt.Sprintf("CPU of %s for %s %d pods (s)", name, way.name, batch), record.Percentile(all, 0.5).Seconds())
		}
	}
}

// batchTimes are those of one batch: until all are Ready, a pod's median, and until all are gone.
type batchTimes struct {
	all, middle, deleted time.Duration
	// starting and deleting are what that takes of the processors, by the name of who uses them; see processors.
	starting, deleting map[string]time.Duration
}

// batch starts and deletes many pods at once, which change makes what they are.
func (m *meter) batch(s *scene.Scene, change func(*corev1.Pod) *corev1.Pod) (b batchTimes) {
	m.t.Helper()
	var pods []*corev1.Pod
	var names []string
	for i := range batch {
		p := change(bound(fmt.Sprintf("many-%d", i)))
		pods, names = append(pods, p), append(names, p.Name)
	}
	mark, used := s.Record.Mark(), m.processors()
	s.CreatePods(pods...)
	s.WaitReady(2*scene.Patience, names...)
	s.SyncRecord()
	b.starting = since(used, m.processors())
	starts, first, last := spread(record.PodTimes(s.Record.Since(mark)))
	b.all, b.middle = last.Sub(first), record.Percentile(starts, 0.5)

	mark, used = s.Record.Mark(), m.processors()
	if err := s.API.CoreV1().Pods(s.Namespace).DeleteCollection(m.t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		m.t.Fatal(err)
	}
	s.Wait(2*scene.Patience, "the pods' end", s.AreGone(names...))
	s.SyncRecord()
	b.deleting = since(used, m.processors())
	var begin, end time.Time
	for _, times := range record.PodTimes(s.Record.Since(mark)) {
		if begin.IsZero() || times.Deleted.Before(begin) {
			begin = times.Deleted
		}
		if times.Gone.After(end) {
			end = times.Gone
		}
	}
	b.deleted = end.Sub(begin)
	return b
}

// putBatches puts the medians of batches of what the pods are.
func (m *meter) putBatches(what string, runs []batchTimes) {
	median := func(of func(batchTimes) time.Duration) float64 {
		var all []time.Duration
		for _, r := range runs {
			all = append(all, of(r))
		}
		return record.Percentile(all, 0.5).Seconds()
	}
	m.put(fmt.Sprintf("%d %s at once, until all are Ready (s)", batch, what),
		median(func(b batchTimes) time.Duration { return b.all }))
	m.put(fmt.Sprintf("%d %s at once, created to Ready, p50 (s)", batch, what),
		median(func(b batchTimes) time.Duration { return b.middle }))
	m.put(fmt.Sprintf("%d %s deleted at once, until all are gone (s)", batch, what),
		median(func(b batchTimes) time.Duration { return b.deleted }))
}

// spread gives each pod's time to Ready, the first creation and the last Ready.
func spread(times map[types.UID]record.Times) (starts []time.Duration, first, last time.Time) {
	for _, t := range times {
		if t.Created.IsZero() || t.Ready.IsZero() {
			continue
		}
		starts = append(starts, t.Ready.Sub(t.Created))
		if first.IsZero() || t.Created.Before(first) {
			first = t.Created
		}
		if t.Ready.After(last) {
			last = t.Ready
		}
	}
	return starts, first, last
}

// crowded measures the idle agent with pods.
func (m *meter) crowded() {
	m.t.Helper()
	s := scene.New(m.t)
	var pods []*corev1.Pod
	var names []string
	for i := range idlePods {
		p := bound(fmt.Sprintf("idle-%d", i))
		pods, names = append(pods, p), append(names, p.Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(2*scene.Patience, names...)
	m.idle(fmt.Sprintf("%d pods", idlePods))
	s.DeleteAllPods()
}

// idle measures what the agent's processes use together while nothing happens.
func (m *meter) idle(with string) {
	m.t.Helper()
	time.Sleep(calmBefore)
	pids := m.processes()
	begin := m.cpu(pids)
	time.Sleep(idleTime)
	used := m.cpu(pids) - begin
	var memory int64
	for _, pid := range pids {
		pss, err := machine.PSS(pid)
		if err != nil {
			m.t.Fatal(err)
		}
		memory += pss
	}
	m.put("CPU idle with "+with+" (cores)", used.Seconds()/idleTime.Seconds())
	m.put("memory (PSS) with "+with+" (MiB)", float64(memory)/(1<<20))
	m.anonymous(with)
}

// anonymous logs what each process of a service has for itself.
func (m *meter) anonymous(with string) {
	m.t.Helper()
	if scene.Shared.Agent() != rig.AgentMicrolet || slices.Contains(scene.Current.Args, scene.SinglePlacement) {
		return
	}
	for _, r := range role.All() {
		pid := scene.Shared.PID(r)
		if pid == 0 {
			continue // the viewer of the bus has no process
		}
		own, err := machine.Anonymous(pid)
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Logf("anonymous memory of %s with %s: %.1f MiB", r, with, float64(own)/(1<<20))
	}
}

// processes are the agent and all its children.
func (m *meter) processes() []int {
	m.t.Helper()
	agent, err := scene.Shared.AgentPID()
	if err != nil {
		m.t.Fatal(err)
	}
	children, err := machine.Children(agent)
	if err != nil {
		m.t.Fatal(err)
	}
	return append(children, agent)
}

func (m *meter) cpu(pids []int) time.Duration {
	m.t.Helper()
	var sum time.Duration
	for _, pid := range pids {
		used, err := machine.CPU(pid)
		if err != nil {
			m.t.Fatalf("a process of the agent has ended: %v", err)
		}
		sum += used
	}
	return sum
}

// kills measures a pod that is created as the agent is killed: of microlet's processes the one that
// starts pods, and then all of them, which is what the kubelet's end means.
func (m *meter) kills() {
	m.t.Helper()
	ways := map[string]func() error{"the agent": func() error {
		ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Second)
		defer cancel()
		return scene.Shared.KillAgent(ctx)
	}}
	if scene.Shared.Agent() == rig.AgentMicrolet && !slices.Contains(scene.Current.Args, scene.SinglePlacement) {
		ways["podsync (the kubelet itself)"] = func() error {
			pid := scene.Shared.PID("podsync")
			if pid == 0 {
				return errors.New("podsync does not run")
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	} else {
		ways["podsync (the kubelet itself)"] = ways["the agent"]
	}
	for _, way := range []string{"the agent", "podsync (the kubelet itself)"} {
		s := scene.New(m.t)
		var starts []time.Duration
		for i := range killRuns {
			time.Sleep(calmBefore)
			name := fmt.Sprintf("mid-%d", i)
			if err := ways[way](); err != nil {
				m.t.Fatal(err)
			}
			s.CreatePods(bound(name))
			s.WaitReady(scene.Patience, name)
			starts = append(starts, s.StartTime(name))
		}
		m.put("a pod created at the SIGKILL of "+way+", created to Ready, p50 (s)",
			record.Percentile(starts, 0.5).Seconds())
		s.DeleteAllPods()
	}
}
