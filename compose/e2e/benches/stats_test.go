//go:build bench

package benches

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	measuredPods = 100
	// Two readers of figures come as often as they do by default.
	readPeriod = 15 * time.Second
	readTime   = 3 * time.Minute
)

// readerPages are what each reader reads: metrics-server and Prometheus.
var readerPages = [][]string{{"/metrics/resource"}, {"/metrics", "/metrics/cadvisor", "/metrics/probes"}}

// TestBenchStats measures what figures of many pods cost the agent, while two readers read them.
func TestBenchStats(t *testing.T) {
	scene.Shared.LinkForCadvisor(t)
	// The kubelet restarts, with the link.
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	compare(t, func(m *meter) {
		m.warm()
		m.figures()
	}, agents[:2]...)
}

// figures measures with readers, and first without.
func (m *meter) figures() {
	m.t.Helper()
	s := scene.New(m.t)
	var names []string
	for i := range measuredPods {
		p := bound(fmt.Sprintf("measured-%d", i))
		names = append(names, p.Name)
		s.CreatePods(p)
	}
	s.WaitReady(2*scene.Patience, names...)
	r := s.MetricsReader()
	s.AwaitSlowly(scene.Patience, "figures of the pods", func() error {
		_, _, err := r.Get(m.t.Context(), "/metrics/cadvisor")
		return err
	})
	m.idle(fmt.Sprintf("%d pods, no reader", measuredPods))

	ctx, stop := context.WithCancel(m.t.Context())
	var reading sync.WaitGroup
	for i, pages := range readerPages {
		reading.Go(func() {
			time.Sleep(time.Duration(i) * readPeriod / 2) // they come at different times
			m.reads(ctx, r, pages)
		})
	}
	time.Sleep(2 * readPeriod)
	what := fmt.Sprintf("%d pods, two readers", measuredPods)
	stats := scene.Shared.PID(role.Stats)
	pids := m.processes()
	began, used, own := time.Now(), m.cpu(pids), time.Duration(0)
	if stats != 0 {
		own = m.cpu([]int{stats})
	}
	time.Sleep(readTime)
	took := time.Since(began).Seconds()
	m.put("CPU with "+what+" (cores)", (m.cpu(pids)-used).Seconds()/took)
	m.put("memory (PSS) with "+what+" (MiB)", m.memory(machine.PSS, pids...))
	if stats != 0 {
		m.t.Logf("stats alone with %s: %.4f cores, PSS %.1f MiB, anonymous memory %.1f MiB", what,
			(m.cpu([]int{stats})-own).Seconds()/took, m.memory(machine.PSS, stats), m.memory(machine.Anonymous, stats))
	}
	stop()
	reading.Wait()
	s.DeleteAllPods()
}

// memory is what processes have together, in MiB.
func (m *meter) memory(of func(pid int) (int64, error), pids ...int) float64 {
	m.t.Helper()
	var sum int64
	for _, pid := range pids {
		bytes, err := of(pid)
		if err != nil {
			m.t.Fatal(err)
		}
		sum += bytes
	}
	return float64(sum) / (1 << 20)
}

// reads reads pages each period until the context ends.
func (m *meter) reads(ctx context.Context, r *scene.MetricsReader, pages []string) {
	tick := time.NewTicker(readPeriod)
	defer tick.Stop()
	for {
		for _, page := range pages {
			began := time.Now()
			_, body, err := r.Get(ctx, page)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				m.t.Error(err)
			}
			m.t.Logf("%s: %d bytes in %s", page, len(body), scene.Milliseconds(time.Since(began)))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
