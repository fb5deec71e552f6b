//go:build bench

package benches

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestBenchCSI measures pods with a volume of a CSI driver, which is attached, staged and published.
func TestBenchCSI(t *testing.T) {
	compare(t, func(m *meter) {
		m.warm()
		m.csi()
	}, agents[0], agents[1])
}

// csi measures pods that have a claim each. The volumes exist before the measurement.
func (m *meter) csi() {
	m.t.Helper()
	s := scene.New(m.t)
	c := s.StartCSI()
	var starts []time.Duration
	for i := range singles {
		name := fmt.Sprintf("one-%d", i)
		c.Claim(name)
		time.Sleep(pause)
		s.CreatePods(scene.WithClaims(bound(name), name))
		s.WaitReady(scene.Patience, name)
		starts = append(starts, s.StartTime(name))
	}
	m.put("one pod with a CSI volume, created to Ready, p50 (s)", record.Percentile(starts, 0.5).Seconds())
	s.DeleteAllPods()
	c.LeavesNoVolume()

	var claims []string
	for i := range batch {
		claims = append(claims, fmt.Sprintf("many-%d", i))
	}
	c.ClaimAll(claims...)
	var runs []batchTimes
	for range batchRuns {
		time.Sleep(calmBefore)
		runs = append(runs, m.batch(s, func(p *corev1.Pod) *corev1.Pod { return scene.WithClaims(p, p.Name) }))
		c.LeavesNoVolume()
	}
	m.putBatches("pods with a CSI volume each", runs)
}
