package scene

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
)

// Samples is how often something is measured without what hangs, and beside it, in turn. On a busy machine one sample
// of each says nothing.
const Samples = 3

// Sample is how fast pods were that lived at the same time.
type Sample struct {
	// Ready and Gone are medians: from the creation of a pod, and from its deletion.
	Ready, Gone time.Duration
	// Probes is how many a second ran, if they were counted.
	Probes float64
}

// Sample creates pods at once, has something happen while all are Ready, and deletes them.
func (s *Scene) Sample(pods []*corev1.Pod, while func()) Sample {
	s.T.Helper()
	names := map[string]bool{}
	for _, p := range pods {
		names[p.Name] = true
	}
	mark := s.Record.Mark()
	s.CreatePods(pods...)
	all := slices.Sorted(maps.Keys(names))
	s.WaitReady(Patience, all...)
	while()
	s.DeletePods(all...)
	s.Wait(Patience, "the end of the pods", s.AreGone(all...))
	s.SyncRecord()
	entries := s.Record.Since(mark)
	times := record.PodTimes(entries)
	var starts, ends []time.Duration
	for _, e := range entries {
		if p, ok := e.Object.(*corev1.Pod); ok && e.Deleted && p.Namespace == s.Namespace && names[p.Name] {
			t := times[p.UID]
			starts, ends = append(starts, t.Ready.Sub(t.Created)), append(ends, t.Gone.Sub(t.Deleted))
		}
	}
	if len(starts) != len(pods) {
		s.T.Fatalf("the record has the lives of %d of %d pods", len(starts), len(pods))
	}
	return Sample{Ready: record.Percentile(starts, 0.5), Gone: record.Percentile(ends, 0.5)}
}

// LogSamples logs what was measured without what hangs and beside it, with the medians and their ratio. It judges
// nothing, since the machine may be busy.
func (s *Scene) LogSamples(hangs string, without, beside []Sample) {
	s.T.Helper()
	for _, figure := range []struct {
		name string
		of   func(Sample) float64
	}{
		{"seconds to Ready", func(is Sample) float64 { return is.Ready.Seconds() }},
		{"seconds to the end", func(is Sample) float64 { return is.Gone.Seconds() }},
		{"probes a second", func(is Sample) float64 { return is.Probes }},
	} {
		a, listA := median(without, figure.of)
		b, listB := median(beside, figure.of)
		if a > 0 { // it was counted
			s.T.Logf("%s, %s: median %.2f without (%s), %.2f beside it (%s), ratio %.2f", hangs, figure.name, a, listA, b,
				listB, b/a)
		}
	}
}

// median is that of a figure of samples, and their list.
func median(samples []Sample, of func(Sample) float64) (middle float64, list string) {
	var all []float64
	var texts []string
	for _, is := range samples {
		all, texts = append(all, of(is)), append(texts, fmt.Sprintf("%.2f", of(is)))
	}
	slices.Sort(all)
	return all[len(all)/2], strings.Join(texts, ", ")
}
