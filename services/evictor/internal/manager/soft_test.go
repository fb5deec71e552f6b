package manager

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/evictor/internal/reading"
	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// A pod has the shorter of its own time to end and evictionMaxPodGracePeriod, and one second of a hard threshold. It
// never has less, however negative evictionMaxPodGracePeriod is.
func TestTheTimeToEnd(t *testing.T) {
	low := map[string]string{"memory.available": "2Gi"}
	for _, test := range []struct {
		hard, soft map[string]string
		own        *int64
		max, want  int64
	}{
		{soft: low, own: new(int64(7)), max: 20, want: 7},
		{soft: low, own: new(int64(30)), max: 20, want: 20},
		{soft: low, own: nil, max: 20, want: 20},
		{soft: low, own: new(int64(30)), max: 0, want: 1},
		{soft: low, own: new(int64(30)), max: -1, want: 1},
		{soft: low, own: new(int64(30)), max: -10, want: 1},
		{soft: low, own: nil, max: -60, want: 1},
		{hard: low, own: new(int64(30)), max: 20, want: 1},
		{hard: low, own: new(int64(0)), max: 20, want: 1},
	} {
		m := newMachine(t)
		m.add("hog", 7*gi, func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = test.own })
		o := m.options(test.hard, test.soft)
		o.MaxPodGrace, o.Node = test.max, calls{m}
		m.run(o, Adopted{}, 64*time.Second, func() {
			if want := []string{fmt.Sprintf("evict hog in %d s", test.want)}; !slices.Equal(m.did, want) {
				t.Errorf("%+v: did %q, want %q", test, m.did, want)
			}
		})
	}
}

// calls fails as gRPC does with a context that has ended already.
type calls struct{ *machine }

func (c calls) Evict(ctx context.Context, e Eviction) (stopped bool, err error) {
	if ctx.Err() != nil {
		c.note("never sent")
		return false, ctx.Err()
	}
	return c.machine.Evict(ctx, e)
}

// An evictor that is stopped before it has asked podsync has evicted no pod.
func TestAnEvictionThatIsNotAskedForDoesNotCount(t *testing.T) {
	m := newMachine(t)
	m.free = 0
	m.add("p", gi, nil)
	m.add("q", gi, nil)
	synctest.Test(t, func(t *testing.T) {
		o := m.options(low, nil)
		o.Node = calls{m}
		man := New(o, Adopted{})
		man.take(m.All(t.Context()))
		due := man.tracker.Update(o.Thresholds, man.seen, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		out := workOf(ctx, man, due).do(ctx)
		if n := testutil.CollectAndCount(o.Metrics.evictions); out.evicted || len(m.did) > 0 || n > 0 {
			t.Errorf("%+v, did %q, counted for %d signals", out, m.did, n)
		}
	})
}

// Without the minimum reclaim one pod is enough. With it the next one goes at once: a soft threshold does not wait for
// its grace period again.
func TestPodsGoUntilTheMinimumReclaimIsFree(t *testing.T) {
	for reclaim, want := range map[string][]string{
		"0":   {"evict p0 in 20 s"},
		"1Gi": {"evict p0 in 20 s"},
		"2Gi": {"evict p0 in 20 s", "evict p1 in 20 s"},
	} {
		m := newMachine(t)
		m.free = 10 * gi
		for i := range 4 { // 10 - 4 * 2.1 = 1.6 are left, 3.7 without one of them, 5.8 without two
			m.add(fmt.Sprint("p", i), gi*21/10, func(p *v1.Pod) { p.Spec.Priority = new(int32(i)) })
		}
		o := m.options(nil, map[string]string{"memory.available": "2Gi"})
		var err error
		o.Thresholds, err = threshold.Parse(threshold.Config{
			Soft:            map[string]string{"memory.available": "2Gi"},
			SoftGracePeriod: map[string]string{"memory.available": "1m"},
			MinimumReclaim:  map[string]string{"memory.available": reclaim},
		})
		if err != nil {
			t.Fatal(err)
		}
		m.run(o, Adopted{}, 59*time.Second, func() {
			if len(m.did) > 0 {
				t.Errorf("reclaim %s: within the grace period, did %q", reclaim, m.did)
			}
		}, 21*time.Second, func() {
			if !slices.Equal(m.did, want) {
				t.Errorf("reclaim %s: did %q, want %q", reclaim, m.did, want)
			}
		}, 10*time.Minute, func() {
			if !slices.Equal(m.did, want) || m.under(v1.NodeMemoryPressure) != v1.ConditionFalse {
				t.Errorf("reclaim %s: afterwards did %q, %v", reclaim, m.did, m.pressure)
			}
		})
	}
}

// filesystems are those of a node that has its images or layers on another filesystem than the pods.
type filesystems struct {
	*machine
	layout threshold.Layout
	scarce signal.Signal // 5 of 100 are available, and 50 of all others
}

func (f filesystems) Disks(context.Context) reading.Result {
	r := reading.Result{
		Failed: map[signal.Signal]error{}, Seen: threshold.Observations{}, Layout: f.layout, LayoutKnown: true,
	}
	for _, s := range signal.All() {
		if s.Condition() != v1.NodeDiskPressure {
			continue
		}
		o := threshold.Observation{Available: 50, Capacity: 100, Time: time.Now()}
		if s == f.scarce {
			o.Available = 5
		}
		r.Seen[s] = o
	}
	return r
}

func (f filesystems) All(ctx context.Context) reading.Result {
	r := f.Disks(ctx)
	for s, o := range f.Quick().Seen {
		r.Seen[s] = o
	}
	return r
}

// The filesystem of the writable layers has the thresholds of the one that it is, and what is configured for it is
// ignored, as by the kubelet.
func TestTheLayersFilesystemIsGuarded(t *testing.T) {
	one, split := threshold.Layout{ImageFs: true}, threshold.Layout{ImageFs: true, SplitContainerFs: true}
	for _, test := range []struct {
		configured, scarce signal.Signal
		layout             threshold.Layout
		want               []string
	}{
		{signal.ImageFsAvailable, signal.ContainerFsAvailable, one, []string{"containers", "images", "evict hog in 1 s"}},
		{signal.ImageFsInodesFree, signal.ContainerFsInodesFree, one, []string{"containers", "images", "evict hog in 1 s"}},
		{signal.NodeFsAvailable, signal.ContainerFsAvailable, split, []string{"containers", "evict hog in 1 s"}},
		{signal.NodeFsInodesFree, signal.ContainerFsInodesFree, split, []string{"containers", "evict hog in 1 s"}},
		{signal.NodeFsAvailable, signal.ContainerFsAvailable, one, nil},
		{signal.ImageFsAvailable, signal.ContainerFsAvailable, split, nil},
		{signal.ContainerFsAvailable, signal.ContainerFsAvailable, split, nil},
	} {
		m := newMachine(t)
		m.add("hog", 2*gi, nil)
		o := m.options(map[string]string{string(test.configured): "10"}, nil)
		o.Reader = filesystems{m, test.layout, test.scarce}
		m.run(o, Adopted{}, 900*time.Millisecond, func() {
			if !slices.Equal(m.did, test.want) {
				t.Errorf("%s for %s with %+v: did %q, want %q", test.configured, test.scarce, test.layout, m.did, test.want)
			}
			if under := m.under(v1.NodeDiskPressure) == v1.ConditionTrue; under != (test.want != nil) {
				t.Errorf("%s for %s with %+v: under pressure: %t", test.configured, test.scarce, test.layout, under)
			}
		})
	}
}

// allocatable is a node on which all pods together may take 8 GiB, with some of it left.
type allocatable struct{ *machine }

func (a allocatable) Quick() reading.Result {
	r := a.machine.Quick()
	o := r.Seen[signal.MemoryAvailable]
	r.Seen[signal.AllocatableMemoryAvailable] = threshold.Observation{
		Available: o.Available, Capacity: 8 * gi, Time: o.Time,
	}
	r.Seen[signal.MemoryAvailable] = threshold.Observation{Available: 9 * gi, Capacity: 10 * gi, Time: o.Time}
	return r
}

// The threshold of memory guards what the pods may take together too, if it is enforced. Soft ones do not.
func TestAllocatableMemoryIsGuarded(t *testing.T) {
	for _, test := range []struct {
		config threshold.Config
		want   []string
	}{
		{threshold.Config{Hard: low, EnforcePods: true}, []string{"evict hog in 1 s"}},
		{threshold.Config{Hard: low}, nil},
		{threshold.Config{
			Soft: low, SoftGracePeriod: map[string]string{"memory.available": "1s"}, EnforcePods: true}, nil},
	} {
		m := newMachine(t)
		m.add("modest", gi, nil)
		m.add("hog", 7*gi, nil)
		o := m.options(nil, nil)
		var err error
		if o.Thresholds, err = threshold.Parse(test.config); err != nil {
			t.Fatal(err)
		}
		o.Reader = allocatable{m}
		m.run(o, Adopted{}, time.Minute, func() {
			if !slices.Equal(m.did, test.want) {
				t.Errorf("%+v: did %q, want %q", test.config, m.did, test.want)
			}
			if under := m.under(v1.NodeMemoryPressure) == v1.ConditionTrue; under != (test.want != nil) {
				t.Errorf("%+v: under pressure: %t", test.config, under)
			}
		})
	}
}
