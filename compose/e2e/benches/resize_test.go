//go:build bench

package benches

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/resizing"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// resizes is how many resizes are measured one after the other.
const resizes = 20

// TestBenchResizes measures how long a resize takes from the user's patch: until the container's cgroup has it, and
// until the pod's status shows it.
func TestBenchResizes(t *testing.T) {
	compare(t, func(m *meter) {
		m.warm()
		m.resizes()
		m.manyResizes()
	}, agents[:2]...)
}

// sized is a pod whose container has resources of a size, and resized a change to another one.
func sized(name string, size int64) *corev1.Pod {
	p := bound(name)
	resized(size)(&p.Spec)
	return p
}

func resized(size int64) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		cpu := *resource.NewMilliQuantity(size, resource.DecimalSI)
		memory := *resource.NewQuantity(size<<21, resource.BinarySI)
		spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory},
			Limits: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(100*size, resource.DecimalSI),
				corev1.ResourceMemory: memory,
			},
		}
	}
}

// smaller and larger are the sizes between which pods are resized.
const smaller, larger = 5, 10

// resizes resizes one pod up and down.
func (m *meter) resizes() {
	m.t.Helper()
	s := scene.New(m.t)
	s.CreatePods(sized("resized", smaller))
	s.WaitReady(scene.Patience, "resized")
	var enforced, shown []time.Duration
	called := m.calls(updateCall)[updateCall]
	for i := range resizes {
		time.Sleep(pause)
		size := []int64{larger, smaller}[i%2]
		p := s.Record.View().Pod(s.Namespace, "resized")
		mark, begin := s.Record.Mark(), time.Now()
		m.patch(s, p, size)
		m.awaitCgroup(s, p, size)
		enforced = append(enforced, time.Since(begin))
		s.Wait(scene.Patience, "a resize", s.AreResized("resized"))
		shown = append(shown, resizedAt(s, mark, p.Name).Sub(begin))
	}
	m.put("one resize, patched until the cgroup has it, p50 (s)", record.Percentile(enforced, 0.5).Seconds())
	m.put("one resize, patched until the status shows it, p50 (s)", record.Percentile(shown, 0.5).Seconds())
	m.put("UpdateContainerResources of one resize, mean (s)", m.calls(updateCall)[updateCall].plus(called, -1).value())
	s.DeleteAllPods()
}

// updateCall is the call of the runtime that a resize cannot do without.
const updateCall = "update_container"

// patch sends a resize.
func (m *meter) patch(s *scene.Scene, p *corev1.Pod, size int64) {
	m.t.Helper()
	patch, err := scene.ResizePatch(p, resized(size))
	if err == nil {
		err = s.PatchResize(p.Name, patch)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// awaitCgroup polls the cgroup of the container, which takes some microseconds each time.
func (m *meter) awaitCgroup(s *scene.Scene, p *corev1.Pod, size int64) {
	m.t.Helper()
	want := sized(p.Name, size)
	_, id, _ := strings.Cut(scene.ContainerID(p), "://")
	at, err := s.CgroupFolders(id)
	if err != nil {
		m.t.Fatal(err)
	}
	for deadline := time.Now().Add(scene.Patience); ; time.Sleep(time.Millisecond) {
		got, err := at.Read(s.ReadFile)
		if err != nil {
			m.t.Fatal(err)
		}
		problem := resizing.OfContainer(want, &want.Spec.Containers[0]).Problem(got)
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: %s", filepath.Base(at.CPU), problem)
		}
	}
}

// resizedAt is when the record first saw that the pod's status shows what its spec asks for, after a mark.
func resizedAt(s *scene.Scene, mark record.Mark, name string) time.Time {
	s.T.Helper()
	patched := false
	for _, e := range s.Record.Since(mark) {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || p.Namespace != s.Namespace || p.Name != name {
			continue
		}
		switch done := resizing.Done(p); {
		case done != nil:
			patched = true
		case patched:
			return e.At
		}
	}
	s.T.Fatalf("pod %s was not seen to be resized", name)
	return time.Time{}
}

// manyResizes resizes many pods at once, up and down.
func (m *meter) manyResizes() {
	m.t.Helper()
	s := scene.New(m.t)
	var pods []*corev1.Pod
	var names []string
	for i := range batch {
		p := sized(fmt.Sprintf("resized-%d", i), smaller)
		pods, names = append(pods, p), append(names, p.Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(2*scene.Patience, names...)
	var whole, middle []time.Duration
	called := m.calls(updateCall)[updateCall]
	for run := range 2 * batchRuns {
		time.Sleep(calmBefore)
		all, each := m.resizeAll(s, names, []int64{larger, smaller}[run%2])
		whole, middle = append(whole, all), append(middle, each)
	}
	m.put(fmt.Sprintf("%d resizes at once, until the status of all shows them (s)", batch),
		record.Percentile(whole, 0.5).Seconds())
	m.put(fmt.Sprintf("%d resizes at once, patched until the status shows it, p50 (s)", batch),
		record.Percentile(middle, 0.5).Seconds())
	m.put(fmt.Sprintf("UpdateContainerResources of %d resizes at once, mean (s)", batch),
		m.calls(updateCall)[updateCall].plus(called, -1).value())
	s.DeleteAllPods()
}

// resizeAll resizes the pods at once. It returns how long that takes in all, and for a pod by the median.
func (m *meter) resizeAll(s *scene.Scene, names []string, size int64) (all, middle time.Duration) {
	m.t.Helper()
	v, mark, begin := s.Record.View(), s.Record.Mark(), time.Now()
	sent := make([]time.Time, len(names))
	results := make(chan error, len(names))
	for i, name := range names {
		patch, err := scene.ResizePatch(v.Pod(s.Namespace, name), resized(size))
		if err != nil {
			m.t.Fatal(err)
		}
		go func() {
			sent[i] = time.Now()
			results <- s.PatchResize(name, patch)
		}()
	}
	var problems []error
	for range names {
		problems = append(problems, <-results)
	}
	if err := errors.Join(problems...); err != nil {
		m.t.Fatal(err)
	}
	s.Wait(2*scene.Patience, "resizes", s.AreResized(names...))
	var each []time.Duration
	for i, name := range names {
		at := resizedAt(s, mark, name)
		each, all = append(each, at.Sub(sent[i])), max(all, at.Sub(begin))
	}
	return all, record.Percentile(each, 0.5)
}
