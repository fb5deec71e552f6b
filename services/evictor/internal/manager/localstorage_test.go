package manager

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/localstorage"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/evictor/internal/usage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
)

// volumes are what stats says of the volume of each pod.
type volumes struct {
	used  map[string]uint64
	age   time.Duration
	asked int
}

func (v *volumes) Of(_ context.Context, all []*nodepods.Pod, _ bool) (usage.Figures, error) {
	v.asked++
	figures := usage.Figures{}
	for _, p := range all {
		fs := statsapi.FsStats{Time: metav1.NewTime(time.Now().Add(-v.age)), UsedBytes: new(v.used[p.Name])}
		figures[p.UID] = &statsapi.PodStats{VolumeStats: []statsapi.VolumeStats{{Name: "scratch", FsStats: fs}}}
	}
	return figures, nil
}

// asStatsSays measures what stats has said.
type asStatsSays struct{ Usage }

func (s asStatsSays) Of(ctx context.Context, p *v1.Pod) (*statsapi.PodStats, error) {
	figures, err := s.Usage.Of(ctx, []*nodepods.Pod{{Pod: p}}, true)
	return figures[p.UID], err
}

// measured has what the volume of a pod takes in truth, by name; a pod that is not in it cannot be measured.
type measured map[string]uint64

func (m measured) Of(_ context.Context, p *v1.Pod) (*statsapi.PodStats, error) {
	used, ok := m[p.Name]
	if !ok {
		return nil, errors.New("not measured yet")
	}
	fs := statsapi.FsStats{Time: metav1.Now(), UsedBytes: &used}
	return &statsapi.PodStats{VolumeStats: []statsapi.VolumeStats{{Name: "scratch", FsStats: fs}}}, nil
}

// TestStatsAloneEvictsNoPod for a limit: evictor measures the pod, and passes the figures on to podsync.
func TestStatsAloneEvictsNoPod(t *testing.T) {
	m, v := newMachine(t), &volumes{used: map[string]uint64{}}
	for _, pod := range []string{"innocent", "large", "guilty", "evicting"} {
		m.add(pod, 0, scratch)
		v.used[pod] = 1 << 40
	}
	m.evicted(3) // so the bus says
	o := m.options(low, nil)
	o.Usage, o.LocalStorage = v, LocalStorage{Enforced: true, MaxAge: time.Minute}
	o.Measure = measured{"innocent": 1 << 20, "guilty": 1<<20 + 1, "evicting": 0}
	node := &exceeded{Node: o.Node}
	o.Node = node
	m.run(o, Adopted{}, 5*time.Minute, func() {
		if want := []string{"evict guilty in 1 s"}; !slices.Equal(m.did, want) {
			t.Errorf("did %q, want %q", m.did, want)
		}
		want := localstorage.Excess{
			Signal: localstorage.SignalEmptyDir, EmptyDir: "scratch", UsedBytes: 1<<20 + 1,
			Message: "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ",
		}
		if len(node.of) != 1 || node.of[0] == nil || *node.of[0] != want {
			t.Errorf("asked for %+v, want %+v", node.of, want)
		}
		for _, result := range []string{confirmed, contradicted, unmeasured} {
			if testutil.ToFloat64(o.Metrics.confirmations.WithLabelValues(result)) == 0 {
				t.Errorf("no measurement is counted as %q", result)
			}
		}
	})
}

// exceeded keeps the limits for which it is asked to evict.
type exceeded struct {
	Node
	of []*localstorage.Excess
}

func (e *exceeded) Evict(ctx context.Context, eviction Eviction) (stopped bool, err error) {
	e.of = append(e.of, eviction.Exceeded)
	return e.Node.Evict(ctx, eviction)
}

// scratch limits a pod's volume.
func scratch(p *v1.Pod) {
	p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{
		EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Mi"))}}}}
}

func TestPodsThatExceedTheirStorageGo(t *testing.T) {
	for name, test := range map[string]struct {
		storage LocalStorage
		age     time.Duration
		want    []string
	}{
		"enforced": {LocalStorage{Enforced: true, MaxAge: time.Minute}, 59 * time.Second,
			[]string{"evict a in 1 s", "evict b in 1 s"}},
		"old figures":  {LocalStorage{Enforced: true, MaxAge: time.Minute}, 61 * time.Second, nil},
		"not enforced": {LocalStorage{MaxAge: time.Minute}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, v := newMachine(t), &volumes{used: map[string]uint64{}, age: test.age}
			for _, pod := range []string{"a", "b", "below", "static"} {
				m.add(pod, 0, scratch)
				v.used[pod] = 1<<20 + 1
			}
			m.add("unlimited", 0, nil)
			v.used["below"], v.used["unlimited"] = 1<<20, 1<<40
			m.pods[3].Spec.Priority = new(int32(podutil.SystemCriticalPriority))
			m.pods[3].Annotations = map[string]string{"kubernetes.io/config.source": "file"}
			o := m.options(low, nil)
			o.Usage, o.LocalStorage = v, test.storage
			m.run(o, Adopted{}, 15*time.Second, func() {
				if !slices.Equal(m.did, test.want) {
					t.Errorf("did %q, want %q", m.did, test.want)
				}
			})
		})
	}
}

// No figures are requested on a node without such limits.
func TestStorageWithoutLimitsIsNotLookedAt(t *testing.T) {
	m, v := newMachine(t), &volumes{}
	m.add("p", 0, nil)
	o := m.options(low, nil)
	o.Usage, o.LocalStorage = v, LocalStorage{Enforced: true, MaxAge: time.Minute}
	m.run(o, Adopted{}, time.Minute, func() {
		if v.asked > 0 {
			t.Errorf("asked %d times", v.asked)
		}
	})
}

// Once in a period is enough, and a shortage of memory does not wait for it.
func TestStorageIsLookedAtOnceAPeriod(t *testing.T) {
	m, v := newMachine(t), &volumes{used: map[string]uint64{}}
	m.add("p", 0, scratch)
	o := m.options(low, nil)
	o.Usage, o.LocalStorage = v, LocalStorage{Enforced: true, MaxAge: time.Minute}
	m.run(o, Adopted{}, 59*time.Second, func() {
		if v.asked != 6 {
			t.Errorf("asked %d times in a minute, want 6", v.asked)
		}
		m.used["p"] = 8 * gi
	}, 2*time.Second, func() {
		if want := []string{"evict p in 1 s"}; !slices.Equal(m.did, want) {
			t.Errorf("did %q, want %q", m.did, want)
		}
	})
}

// The disks and the limits of local storage are looked at in one period, and may be so at the same moments for ever. A
// disk that is full meanwhile is relieved when the limits have been looked at.
func TestAFullDiskIsRelievedAfterTheLimits(t *testing.T) {
	m := newMachine(t)
	m.statsHangs = time.Second
	m.add("hog", gi, scratch)
	m.add("innocent", 1, nil)
	o := m.options(map[string]string{"nodefs.available": "10%"}, nil)
	o.LocalStorage = LocalStorage{Enforced: true, MaxAge: time.Minute}
	m.run(o, Adopted{}, 15*time.Second, func() { m.disk = 5 }, 15*time.Second, func() {
		want := []string{"containers", "images", "evict hog in 1 s"}
		if !slices.Equal(m.did[:min(len(m.did), len(want))], want) || evictions(m.did) != 1 {
			t.Errorf("did %q, want %q and no other eviction", m.did, want)
		}
	})
}

// unkillable has pods that podsync cannot end: a container waits for a server of NFS, say.
type unkillable struct {
	*machine
	stuck map[string]bool
}

func (u unkillable) Evict(ctx context.Context, e Eviction) (stopped bool, err error) {
	u.Lock()
	stuck := u.stuck[e.Pod.Name]
	u.Unlock()
	if !stuck {
		return u.machine.Evict(ctx, e)
	}
	u.note("evict %s in %d s", e.Pod.Name, e.GraceSeconds)
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-time.After(10 * time.Second): // podsync's patience
		return false, nil
	}
}

// exceeding is a node on which a is the oldest pod that exceeds its limit of local storage, and cannot be ended.
func exceeding(t *testing.T, names ...string) (*machine, Options) {
	m, v := newMachine(t), &volumes{used: map[string]uint64{}}
	for _, name := range names {
		m.add(name, 0, scratch)
		v.used[name] = 2 << 20
	}
	o := m.options(low, nil)
	o.Usage, o.LocalStorage = v, LocalStorage{Enforced: true, MaxAge: time.Minute}
	o.Node = unkillable{m, map[string]bool{"a": true}}
	return m, o
}

func times(did []string, what string) (n int) {
	for _, one := range did {
		if one == what {
			n++
		}
	}
	return n
}

// As with the kubelet, every pod goes that exceeds its limits. One that does not end is asked for once a minute, and
// counts once.
func TestAPodThatCannotEndShieldsNoOther(t *testing.T) {
	m, o := exceeding(t, "a", "b", "c")
	m.run(o, Adopted{}, 2*time.Minute, func() {
		if times(m.did, "evict b in 1 s") != 1 || times(m.did, "evict c in 1 s") != 1 {
			t.Errorf("did %q", m.did)
		}
	}, 28*time.Minute, func() {
		if n := times(m.did, "evict a in 1 s"); n < 20 || n > 30 {
			t.Errorf("a was asked for %d times in half an hour", n)
		}
		if n := testutil.ToFloat64(o.Metrics.evictions.WithLabelValues("emptydirfs.limit")); n != 3 {
			t.Errorf("%v evictions were counted of 3 pods", n)
		}
		if m.pressure.Last.PodUID != "c" {
			t.Errorf("the last eviction is of %s", m.pressure.Last.PodUID)
		}
	})
}

// Nor does one that takes the node's memory and cannot be ended: the next one has to give it.
func TestAPodThatCannotEndIsNoShieldInAShortage(t *testing.T) {
	m := newMachine(t)
	m.add("a", 4*gi, nil)
	m.add("b", 2*gi, nil)
	m.add("c", gi, nil)
	o := m.options(low, nil)
	o.Node = unkillable{m, map[string]bool{"a": true}}
	m.run(o, Adopted{}, 15*time.Second, func() { m.used["a"] += gi }, 2*time.Minute, func() {
		if times(m.did, "evict b in 1 s") != 1 || times(m.did, "evict c in 1 s") != 0 {
			t.Errorf("did %q", m.did)
		}
	})
}

// A podsync that restarts forgets evictions, and ends the pod when it is asked again.
func TestAForgottenEvictionIsAskedForAgain(t *testing.T) {
	m, o := exceeding(t, "a")
	m.run(o, Adopted{}, 45*time.Second, func() { clear(o.Node.(unkillable).stuck) }, 30*time.Second, func() {
		if len(m.pods) != 0 || times(m.did, "evict a in 1 s") != 2 {
			t.Errorf("did %q", m.did)
		}
	})
}

// What an evictor before this one has asked for is not a new eviction.
func TestAnEvictionThatIsUnderWayShieldsNoOther(t *testing.T) {
	m, o := exceeding(t, "a", "b")
	m.evicted(0)
	m.run(o, Adopted{}, 30*time.Second, func() {
		if want := []string{"evict b in 1 s", "evict a in 1 s"}; !slices.Equal(m.did, want) {
			t.Errorf("did %q, want %q", m.did, want)
		}
		if n := testutil.ToFloat64(o.Metrics.evictions.WithLabelValues("emptydirfs.limit")); n != 1 {
			t.Errorf("%v evictions were counted, of b alone", n)
		}
	})
}

// A full disk does not wait for a pod that cannot end. If that pod ends after all, no other goes for the disk until its
// space is free.
func TestAFullDiskBesideAPodThatCannotEnd(t *testing.T) {
	for ends, want := range map[bool]int{false: 1, true: 0} {
		m, o := exceeding(t, "a")
		var err error
		o.Thresholds, err = threshold.Parse(threshold.Config{Hard: map[string]string{"nodefs.available": "10"}})
		if err != nil {
			t.Fatal(err)
		}
		m.add("b", 0, func(p *v1.Pod) { // it has no limit, and goes first for the disk
			scratch(p)
			p.Spec.Volumes[0].EmptyDir.SizeLimit, p.Spec.Priority = nil, new(int32(-1))
		})
		o.Usage.(*volumes).used["b"] = 1
		m.run(o, Adopted{}, 55*time.Second, func() {
			m.disk = 5
			if ends {
				clear(o.Node.(unkillable).stuck)
			}
		}, 15*time.Second, func() {
			if n := times(m.did, "evict b in 1 s"); n != want {
				t.Errorf("the first ends: %t, did %q, want %d evictions of b", ends, m.did, want)
			}
		})
	}
}

// A repeated request gives way to a shortage of memory.
func TestMemoryDoesNotWaitForAPodThatCannotEnd(t *testing.T) {
	m, o := exceeding(t, "a")
	m.add("hog", gi, func(p *v1.Pod) { p.Spec.Priority = new(int32(-1)) })
	var began time.Time
	m.run(o, Adopted{}, 61*time.Second, func() {
		if n := times(m.did, "evict a in 1 s"); n != 2 {
			t.Errorf("did %q, want the second request of a under way", m.did)
		}
		began = time.Now()
		m.used["hog"] = 8 * gi
	}, 5*time.Second, func() {
		if times(m.did, "evict hog in 1 s") != 1 || m.times[len(m.times)-1].Sub(began) > 3*time.Second {
			t.Errorf("did %q at %v, %v was the beginning", m.did, m.times, began)
		}
	})
}
