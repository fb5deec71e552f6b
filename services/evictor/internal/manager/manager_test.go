package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/reading"
	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/evictor/internal/usage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
)

const gi = 1 << 30

// machine is a node whose pods take memory, and free it when they are evicted. The manager's loop and its work use it
// at the same time, as they do with the real one; synctest runs both in one bubble.
type machine struct {
	sync.Mutex // guards what follows, but not what is set before the start
	t          *testing.T
	memory     int64 // of the node
	free       int64 // without pods
	used       map[string]int64
	pods       []*nodepods.Pod
	disk       int64 // available of 100
	diskBroken error
	diskHangs  time.Duration
	statsHangs time.Duration
	wrongOnce  bool // one reading is wrong

	refuse   map[string]bool
	takes    time.Duration // for a pod to end
	stuck    bool          // pods do not end
	deaf     bool          // podsync says that they have ended, and the bus does not show it
	noUsage  bool
	unknown  bool  // the pods have not all been seen
	freeing  error // what reclaiming ends with
	did      []string
	times    []time.Time
	pressure Pressure
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, memory: 10 * gi, free: 8 * gi, used: map[string]int64{}, disk: 50, refuse: map[string]bool{},
		takes: time.Millisecond}
}

func (m *machine) add(name string, used int64, change func(*v1.Pod)) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []v1.Container{{Name: "c"}}
	if change != nil {
		change(p)
	}
	m.Lock()
	defer m.Unlock()
	m.pods, m.used[name] = append(m.pods, &nodepods.Pod{Pod: p}), used
}

// evicted says that podsync evicts a pod that still runs.
func (m *machine) evicted(i int) {
	p := m.pods[i]
	p.Terminating, p.Reported, p.Status.Reason = true, true, "Evicted"
	p.Containers = []nodepods.Container{{Name: "c", State: nodepods.Running}}
}

func (m *machine) available() int64 {
	m.Lock()
	defer m.Unlock()
	left := m.free
	for _, p := range m.pods {
		left -= m.used[p.Name]
	}
	return left
}

func (m *machine) Quick() reading.Result {
	available := m.available()
	m.Lock()
	defer m.Unlock()
	if m.wrongOnce {
		m.wrongOnce, available = false, 0
	}
	return reading.Result{Failed: map[signal.Signal]error{}, Seen: threshold.Observations{
		signal.MemoryAvailable: {Available: available, Capacity: m.memory, Time: time.Now()},
	}}
}

func (m *machine) All(ctx context.Context) reading.Result {
	r := m.Disks(ctx)
	for s, o := range m.Quick().Seen {
		r.Seen[s] = o
	}
	return r
}

func (m *machine) Disks(ctx context.Context) reading.Result {
	if m.diskHangs > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(m.diskHangs):
		}
	}
	m.Lock()
	defer m.Unlock()
	r := reading.Result{Failed: map[signal.Signal]error{}, Seen: threshold.Observations{}, LayoutKnown: true}
	if m.diskBroken != nil {
		r.Failed[signal.NodeFsAvailable] = m.diskBroken
		return r
	}
	r.Seen[signal.NodeFsAvailable] = threshold.Observation{Available: m.disk, Capacity: 100, Time: time.Now()}
	return r
}

func (m *machine) Active() []*nodepods.Pod {
	m.Lock()
	defer m.Unlock()
	return slices.Clone(m.pods)
}

func (m *machine) Known() bool {
	m.Lock()
	defer m.Unlock()
	return !m.unknown
}

func (m *machine) Evicting() string { return "" }

func (m *machine) runs(uid string) bool {
	m.Lock()
	defer m.Unlock()
	return slices.ContainsFunc(m.pods, func(p *nodepods.Pod) bool { return string(p.UID) == uid })
}

func (m *machine) Await(ctx context.Context, uid string) bool {
	for range 30 {
		time.Sleep(time.Second)
		if ctx.Err() != nil || !m.runs(uid) {
			return true
		}
	}
	return false
}

func (m *machine) Of(ctx context.Context, all []*nodepods.Pod, disk bool) (usage.Figures, error) {
	if disk && m.statsHangs > 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(m.statsHangs):
		}
	}
	if m.noUsage {
		return nil, usage.ErrNone
	}
	figures := usage.Figures{}
	for _, p := range all {
		used := new(uint64(m.used[p.Name]))
		figures[p.UID] = &statsapi.PodStats{Memory: &statsapi.MemoryStats{WorkingSetBytes: used},
			Containers: []statsapi.ContainerStats{
				{Name: "c", Memory: &statsapi.MemoryStats{WorkingSetBytes: used}, Rootfs: &statsapi.FsStats{UsedBytes: used}},
			}}
	}
	return figures, nil
}

func (m *machine) note(format string, args ...any) {
	m.Lock()
	defer m.Unlock()
	m.did, m.times = append(m.did, fmt.Sprintf(format, args...)), append(m.times, time.Now())
}

func (m *machine) Evict(_ context.Context, e Eviction) (stopped bool, err error) {
	if m.refuse[e.Pod.Name] {
		m.note("refused %s", e.Pod.Name)
		return false, fmt.Errorf("%w: it is critical", ErrRefused)
	}
	m.note("evict %s in %d s", e.Pod.Name, e.GraceSeconds)
	time.Sleep(m.takes)
	if !m.stuck {
		m.Lock()
		defer m.Unlock()
		m.pods = slices.DeleteFunc(m.pods, func(p *nodepods.Pod) bool { return p.UID == e.Pod.UID })
	}
	return !m.stuck || m.deaf, nil
}

func (m *machine) RemoveDeadContainers(context.Context) error { m.note("containers"); return nil }

func (m *machine) DeleteUnusedImages(context.Context) error {
	m.note("images")
	if m.freeing != nil {
		return m.freeing
	}
	return errors.New("an image is in use")
}

func (m *machine) ThresholdMet(r v1.ResourceName) {}

func (m *machine) options(hard map[string]string, soft map[string]string) Options {
	grace := map[string]string{}
	for s := range soft {
		grace[s] = "1m"
	}
	all, err := threshold.Parse(threshold.Config{Hard: hard, Soft: soft, SoftGracePeriod: grace})
	if err != nil {
		m.t.Fatal(err)
	}
	return Options{
		Thresholds: all, Transition: 5 * time.Minute, MaxPodGrace: 20, Period: 10 * time.Second, Reader: m, Pods: m, Usage: m,
		Node: m, Report: m.report, Turned: func() {}, Metrics: NewMetrics(prometheus.NewRegistry()),
		Log: slog.New(slog.DiscardHandler),
	}
}

// workOf is a round that a test runs itself.
func workOf(ctx context.Context, m *Manager, due []threshold.Threshold) *round {
	r := m.work(due, m.o.Thresholds, false)
	r.look = ctx
	return r
}

func (m *machine) report(p Pressure) {
	m.Lock()
	defer m.Unlock()
	m.pressure = p
}

func (m *machine) under(c v1.NodeConditionType) v1.ConditionStatus {
	for _, one := range m.pressure.Conditions {
		if one.Type == c {
			return one.Status
		}
	}
	return ""
}

// run has a manager run for a while. A step is a time.Duration that passes, or a function that looks at the machine or
// changes it.
func (m *machine) run(o Options, before Adopted, steps ...any) {
	if o.Measure == nil {
		o.Measure = asStatsSays{o.Usage}
	}
	synctest.Test(m.t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- New(o, before).Run(ctx) }()
		for _, step := range steps {
			switch do := step.(type) {
			case time.Duration:
				time.Sleep(do)
				synctest.Wait()
			case func():
				m.Lock()
				do()
				m.Unlock()
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

var low = map[string]string{"memory.available": "1Gi"}

func TestOnlyTheHogGoes(t *testing.T) {
	m := newMachine(t)
	m.add("small", gi, nil)
	m.add("hog", 2*gi, nil)
	m.add("requests", 3*gi, func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("4Gi")}
	})
	var began time.Time
	m.run(m.options(low, nil), Adopted{}, time.Minute, func() {
		if len(m.did) > 0 || m.under(v1.NodeMemoryPressure) != v1.ConditionFalse {
			t.Errorf("without pressure: %q, %v", m.did, m.pressure)
		}
		began = time.Now()
		m.used["hog"] += 2 * gi // 8 - 1 - 4 - 3 = 0 left
	}, 4*time.Minute, func() {
		if want := []string{"evict hog in 1 s"}; !slices.Equal(m.did, want) || m.times[0].Sub(began) > 2*time.Second {
			t.Errorf("did %q after %v, want %q", m.did, m.times[0].Sub(began), want)
		}
		if m.under(v1.NodeMemoryPressure) != v1.ConditionTrue || m.pressure.Last.PodUID != "hog" {
			t.Errorf("within the transition period: %v", m.pressure)
		}
	}, 2*time.Minute, func() {
		if m.under(v1.NodeMemoryPressure) != v1.ConditionFalse {
			t.Errorf("after the transition period: %v", m.pressure)
		}
	})
}

func TestOneAfterAnotherAndNeverCriticalOnes(t *testing.T) {
	m := newMachine(t)
	for i := range 5 {
		m.add(fmt.Sprint("p", i), 2*gi, func(p *v1.Pod) { p.Spec.Priority = new(int32(i)) })
	}
	m.add("critical", 2*gi, func(p *v1.Pod) { p.Spec.Priority = new(int32(podutil.SystemCriticalPriority)) })
	m.refuse["p0"] = true
	m.run(m.options(low, nil), Adopted{}, time.Minute, func() {
		var evicted []string
		for i, what := range m.did {
			if strings.HasPrefix(what, "evict") {
				evicted = append(evicted, what)
				if i > 0 && len(evicted) > 1 && m.times[i].Sub(m.times[i-2]) < time.Second {
					t.Errorf("%q follows after %v", what, m.times[i].Sub(m.times[i-2]))
				}
			}
		}
		// 12 GiB of 8: three must go, and p0 is refused each time.
		if want := []string{"evict p1 in 1 s", "evict p2 in 1 s", "evict p3 in 1 s"}; !slices.Equal(evicted, want) {
			t.Errorf("evicted %q, want %q", evicted, want)
		}
	})
}

func TestSoftThresholdsWaitAndGiveTime(t *testing.T) {
	m := newMachine(t)
	m.add("hog", 7*gi, func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(7)) })
	m.run(m.options(nil, map[string]string{"memory.available": "2Gi"}), Adopted{}, 59*time.Second, func() {
		if len(m.did) > 0 || m.under(v1.NodeMemoryPressure) != v1.ConditionTrue {
			t.Errorf("within the grace period: %q, %v", m.did, m.pressure)
		}
	}, 5*time.Second, func() {
		if want := []string{"evict hog in 7 s"}; !slices.Equal(m.did, want) {
			t.Errorf("did %q, want %q", m.did, want)
		}
	})
}

func TestAFullDiskIsClearedBeforePodsGo(t *testing.T) {
	m := newMachine(t)
	m.disk = 5
	m.add("big", 2*gi, nil)
	m.add("small", 1, nil)
	m.run(m.options(map[string]string{"nodefs.available": "10%"}, nil), Adopted{}, 900*time.Millisecond, func() {
		if want := []string{"containers", "images", "evict big in 1 s"}; !slices.Equal(m.did, want) {
			t.Errorf("did %q, want %q", m.did, want)
		}
		if m.under(v1.NodeDiskPressure) != v1.ConditionTrue || m.under(v1.NodeMemoryPressure) != v1.ConditionFalse {
			t.Errorf("pressure %v", m.pressure)
		}
	})
}

// A filesystem that hangs costs a hog of memory no time, and neither do the limits of local storage.
func TestMemoryDoesNotWaitForDisks(t *testing.T) {
	m := newMachine(t)
	m.diskHangs, m.statsHangs = 8*time.Second, 8*time.Second
	m.add("hog", gi, func(p *v1.Pod) { // it has a limit of local storage
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("9Gi")}
	})
	o := m.options(map[string]string{"memory.available": "1Gi", "nodefs.available": "10"}, nil)
	o.LocalStorage = LocalStorage{Enforced: true, MaxAge: time.Minute}
	var began time.Time
	m.run(o, Adopted{}, 8*time.Second, 12*time.Second, func() {
		began = time.Now()
		m.used["hog"] = 8 * gi
	}, 10*time.Second, func() {
		// It is seen within 2 s, and once more 1 s later when the work of the disks has given way.
		if len(m.did) != 1 || m.times[0].Sub(began) > 3*time.Second {
			t.Errorf("did %q at %v, %v was the beginning", m.did, m.times, began)
		}
	})
}

// Nothing is reported before the disks have been read once, and no pod goes for a reading from before an eviction.
func TestAnEvictionOutdatesTheDisks(t *testing.T) {
	m := newMachine(t)
	m.diskHangs, m.disk, m.freeing = 5*time.Second, 5, nil
	m.add("a", gi, nil)
	m.add("b", gi, nil)
	m.run(m.options(map[string]string{"nodefs.available": "10"}, nil), Adopted{},
		4*time.Second, func() {
			if len(m.pressure.Conditions) != 0 {
				t.Errorf("reported before anything was read: %v", m.pressure)
			}
		}, 16*time.Second, func() {
			if evictions(m.did) != 1 {
				t.Errorf("did %q, want one eviction", m.did)
			}
			m.disk = 50
		}, time.Minute, func() {
			if evictions(m.did) != 1 {
				t.Errorf("did %q, want one eviction", m.did)
			}
		})
}

// The space of an evicted pod is free some time after its end: until then no other pod goes, and after that one does if
// it was not enough.
func TestNoOtherPodGoesBeforeTheSpaceOfTheFirstIsFree(t *testing.T) {
	for _, test := range []struct{ brings, want int }{{50, 1}, {0, 2}} {
		m := newMachine(t)
		m.disk = 5
		m.add("a", gi, nil)
		m.add("b", gi, nil)
		m.run(m.options(map[string]string{"nodefs.available": "10"}, nil), Adopted{},
			12*time.Second, func() {
				if evictions(m.did) != 1 {
					t.Errorf("after 12 s: did %q, want one eviction", m.did)
				}
				m.disk += int64(test.brings)
			}, 30*time.Second, func() {
				if evictions(m.did) != test.want {
					t.Errorf("did %q, want %d evictions", m.did, test.want)
				}
			})
	}
}

func evictions(did []string) (n int) {
	for _, what := range did {
		if strings.HasPrefix(what, "evict ") {
			n++
		}
	}
	return n
}

// A threshold that no node of this size can be above is a mistake, and not a reason to evict all pods.
func TestAThresholdAboveTheCapacity(t *testing.T) {
	m := newMachine(t)
	m.add("a", gi, nil)
	m.run(m.options(map[string]string{"memory.available": "11Gi"}, nil), Adopted{}, time.Minute, func() {
		if len(m.did) != 0 || m.under(v1.NodeMemoryPressure) != v1.ConditionFalse {
			t.Errorf("did %q, %v", m.did, m.pressure)
		}
	})
}

// A pod that podsync refused to evict is not the last that was evicted.
func TestARefusedEvictionIsNotTheLast(t *testing.T) {
	m := newMachine(t)
	m.add("refused", 8*gi, nil)
	m.refuse["refused"] = true
	m.run(m.options(low, nil), Adopted{Last: LastEviction{PodUID: "before"}}, 5*time.Second, func() {
		if !slices.Contains(m.did, "refused refused") || m.pressure.Last.PodUID != "before" {
			t.Errorf("did %q, the last is %v", m.did, m.pressure.Last)
		}
	})
}

// While space is still being freed, or imagegc restarts, no pod goes; but not for ever.
func TestNoPodGoesWhileSpaceIsBeingFreed(t *testing.T) {
	m := newMachine(t)
	m.disk, m.freeing = 5, fmt.Errorf("%w: imagegc restarts", ErrUnfinished)
	m.add("a", gi, nil)
	m.run(m.options(map[string]string{"nodefs.available": "10"}, nil), Adopted{},
		25*time.Second, func() {
			if len(m.pods) != 1 {
				t.Errorf("after 25 s: %q", m.did)
			}
		}, 20*time.Second, func() {
			if len(m.pods) != 0 {
				t.Errorf("after 45 s: %q", m.did)
			}
		})
}

// An evictor that has not seen all pods yet must not choose among those that it has.
func TestNoPodGoesUntilAllAreKnown(t *testing.T) {
	m := newMachine(t)
	m.unknown = true
	m.add("hog", 8*gi, nil)
	m.run(m.options(map[string]string{"memory.available": "1Gi"}, nil), Adopted{},
		20*time.Second, func() {
			if len(m.pods) != 1 {
				t.Errorf("evicted: %q", m.did)
			}
			m.unknown = false
		}, 20*time.Second, func() {
			if len(m.pods) != 0 {
				t.Errorf("not evicted: %q", m.did)
			}
		})
}

// Nothing is evicted for a signal that is wrong once, that cannot be read, or while nothing is known of pods.
func TestNoPodGoesForNonsense(t *testing.T) {
	for name, change := range map[string]func(*machine){
		"wrong once": func(m *machine) { m.wrongOnce = true },
		"unreadable": func(m *machine) { m.disk, m.diskBroken = 0, errors.New("size 0") },
		"no figures": func(m *machine) { m.free, m.noUsage = 0, true },
	} {
		m := newMachine(t)
		m.add("p", gi, nil)
		change(m)
		o := m.options(map[string]string{"memory.available": "1Gi", "nodefs.available": "10%"}, nil)
		m.run(o, Adopted{}, time.Minute, func() {
			if len(m.did) > 0 {
				t.Errorf("%s: did %q", name, m.did)
			}
			if got := m.under(v1.NodeDiskPressure); name == "unreadable" && got != v1.ConditionUnknown {
				t.Errorf("%s: disk pressure %s", name, got)
			}
		})
	}
}

// A pod that does not end is waited for; the next goes after 30 s, not all at once.
func TestAStuckPodDoesNotEmptyTheNode(t *testing.T) {
	m := newMachine(t)
	m.free, m.stuck = 0, true
	for i := range 10 {
		m.add(fmt.Sprint("p", i), gi, nil)
	}
	m.run(m.options(low, nil), Adopted{}, time.Minute, func() {
		if len(m.did) > 2 {
			t.Errorf("%d evictions within a minute: %q", len(m.did), m.did)
		}
	})
}

// The bus may be away: what podsync has answered counts, and the next pod does not wait for the bus.
func TestAPodThatHasStoppedIsNotAwaited(t *testing.T) {
	m := newMachine(t)
	m.free, m.stuck, m.deaf = 0, true, true
	for _, name := range []string{"p", "q", "r"} {
		m.add(name, gi, nil)
	}
	m.run(m.options(low, nil), Adopted{}, 20*time.Second, func() {
		slices.Sort(m.did)
		if want := []string{"evict p in 1 s", "evict q in 1 s", "evict r in 1 s"}; !slices.Equal(m.did, want) {
			t.Errorf("did %q, want %q", m.did, want)
		}
		for i := range m.times[1:] {
			if since := m.times[i+1].Sub(m.times[i]); since < time.Second || since > 3*time.Second {
				t.Errorf("an eviction comes %v after the one before", since)
			}
		}
	})
}

// Readings that want a second eviction before the first can have helped blow the fuse.
func TestTheFuse(t *testing.T) {
	m := newMachine(t)
	m.free = 0
	m.add("p", gi, nil)
	m.add("q", gi, nil)
	synctest.Test(t, func(t *testing.T) {
		o := m.options(low, nil)
		man := New(o, Adopted{})
		man.take(m.All(t.Context()))
		due := man.tracker.Update(o.Thresholds, man.seen, time.Now())
		man.fuse.Evicted(time.Now().Add(-time.Millisecond)) // as if the wait for the last pod had been skipped
		for range 2 {
			if out := workOf(t.Context(), man, due).do(t.Context()); out.evicted || len(m.did) > 0 {
				t.Errorf("evicted %q", m.did)
			}
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Minute)
		if out := workOf(t.Context(), man, due).do(t.Context()); !out.evicted {
			t.Error("the fuse stays blown")
		}
	})
}

func TestARestartAwaitsTheEvictionOfBefore(t *testing.T) {
	m := newMachine(t)
	m.free = 0
	m.add("hog", gi, nil)
	m.add("other", gi, nil)
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // where synctest's clock begins
	before := Adopted{
		LastMet: map[v1.NodeConditionType]time.Time{v1.NodeMemoryPressure: bubble.Add(-time.Minute)},
		Last:    LastEviction{"hog", bubble.Add(-2 * time.Second)},
	}
	m.run(m.options(low, nil), before, 20*time.Second, func() {
		if len(m.did) > 0 || m.under(v1.NodeMemoryPressure) != v1.ConditionTrue {
			t.Errorf("did %q while hog was ending; pressure %v", m.did, m.pressure)
		}
		m.pods, m.free = m.pods[1:], 8*gi // it has ended, and that is enough
	}, time.Minute, func() {
		if len(m.did) > 0 {
			t.Errorf("did %q for the same cause", m.did)
		}
	})
}
