package manager

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/pods"
	"github.com/microlet/microlet/services/evictor/internal/usage"
	"github.com/microlet/microlet/services/internal/podutil"
)

// volumes are what stats says of the volume of each pod.
type volumes struct {
	used  map[string]uint64
	age   time.Duration
	asked int
}

func (v *volumes) Of(_ context.Context, all []pods.Pod, _ bool) (usage.Figures, error) {
	v.asked++
	figures := usage.Figures{}
	for _, p := range all {
		fs := statsapi.FsStats{Time: metav1.NewTime(time.Now().Add(-v.age)), UsedBytes: new(v.used[p.Name])}
		figures[p.UID] = &statsapi.PodStats{VolumeStats: []statsapi.VolumeStats{{Name: "scratch", FsStats: fs}}}
	}
	return figures, nil
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

// Nobody is asked for figures on a node whose pods have no such limits.
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
