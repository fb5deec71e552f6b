package measurement

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/diskusage"
	"github.com/microlet/microlet/services/internal/podfolders"
)

// layers are a runtime's figures of containers, by pod and container.
type layers map[string]map[string]uint64

func (l layers) ListContainerStats(_ context.Context, r *runtimeapi.ListContainerStatsRequest,
	_ ...grpc.CallOption) (*runtimeapi.ListContainerStatsResponse, error) {
	if l == nil {
		return nil, errors.New("no runtime")
	}
	answer := &runtimeapi.ListContainerStatsResponse{}
	for pod, containers := range l { // as a runtime that does not know the filter
		for name, used := range containers {
			answer.Stats = append(answer.Stats, &runtimeapi.ContainerStats{
				Attributes: &runtimeapi.ContainerAttributes{
					Labels: map[string]string{labelPodUID: pod, labelContainerName: name},
				},
				WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: used}},
			})
		}
	}
	return answer, nil
}

func newPod(uid types.UID) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}}
	p.Spec.Volumes = []v1.Volume{
		{Name: "disk", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: v1.VolumeSource{
			EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
		{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}},
	}
	return p
}

var layout = podfolders.Layout{Root: "/nowhere/kubelet", Logs: "/nowhere/logs"}

// run has a Measurer run in virtual time.
func run(t *testing.T, runtime Runtime, walk Walk, test func(t *testing.T, m *Measurer)) {
	synctest.Test(t, func(t *testing.T) {
		m := New(layout, runtime, walk)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		test(t, m)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestWhatIsMeasured is what the Summary API has of a pod, of the runtime's containers and the pod's own folders.
func TestWhatIsMeasured(t *testing.T) {
	walk := func(_ context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		used := map[diskusage.Dir]diskusage.Usage{}
		for i, suffix := range []string{
			"kubelet/pods/u/volumes/kubernetes.io~empty-dir/disk", "kubelet/pods/u/volumes/kubernetes.io~empty-dir/memory",
			"logs/ns_p_u/main", "kubelet/pods/u/etc-hosts", "logs/ns_p_u",
			"kubelet/pods/u/containers/main",
		} {
			for _, d := range dirs {
				if d.Path == "/nowhere/"+suffix {
					used[d] = diskusage.Usage{UsedBytes: 1 << i}
				}
			}
		}
		if len(used) != len(dirs) {
			return nil, fmt.Errorf("asked for %v", dirs)
		}
		return used, nil
	}
	run(t, layers{"u": {"main": 1000}, "other": {"main": 5000}}, walk, func(t *testing.T, m *Measurer) {
		p := newPod("u")
		p.Spec.Containers = []v1.Container{{Name: "main"}}
		f, err := m.Of(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.VolumeStats) != 2 || *f.VolumeStats[0].UsedBytes != 1 || *f.VolumeStats[1].UsedBytes != 2 {
			t.Errorf("volumes %+v", f.VolumeStats)
		}
		if len(f.Containers) != 1 || *f.Containers[0].Logs.UsedBytes != 4 || *f.Containers[0].Rootfs.UsedBytes != 1000 {
			t.Errorf("containers %+v", f.Containers)
		}
		if got := *f.EphemeralStorage.UsedBytes; got != 1+4+8+16+32+1000 {
			t.Errorf("%d bytes in all", got)
		}
	})
}

// attempts are instances of containers, in the order of a runtime's list.
type attempts []struct {
	name    string
	attempt uint32
	used    uint64
}

func (a attempts) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest,
	...grpc.CallOption) (*runtimeapi.ListContainerStatsResponse, error) {
	answer := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range a {
		answer.Stats = append(answer.Stats, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{
				Labels:   map[string]string{labelPodUID: "u", labelContainerName: c.name},
				Metadata: &runtimeapi.ContainerMetadata{Name: c.name, Attempt: c.attempt},
			},
			WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: c.used}},
		})
	}
	return answer, nil
}

// TestContainersThatHaveEnded count, but for those that others have replaced.
func TestContainersThatHaveEnded(t *testing.T) {
	walk := func(_ context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		used := map[diskusage.Dir]diskusage.Usage{}
		for _, d := range dirs {
			if strings.HasPrefix(d.Path, "/nowhere/logs/ns_p_u/") {
				used[d] = diskusage.Usage{UsedBytes: 10}
			}
		}
		return used, nil
	}
	runtime := attempts{{"main", 0, 100}, {"main", 2, 1}, {"main", 1, 200}, {"init", 0, 1000}}
	run(t, runtime, walk, func(t *testing.T, m *Measurer) {
		p := newPod("u")
		p.Spec.Volumes = nil
		p.Spec.Containers = []v1.Container{{Name: "main"}}
		p.Spec.InitContainers = []v1.Container{{Name: "init"}, {Name: "next"}}
		f, err := m.Of(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if got := *f.EphemeralStorage.UsedBytes; got != 1+1000+3*10 {
			t.Errorf("%d bytes in all", got)
		}
		for _, c := range f.Containers {
			if c.Name == "main" && *c.Rootfs.UsedBytes != 1 {
				t.Errorf("the layer of main takes %d bytes", *c.Rootfs.UsedBytes)
			}
		}
	})
}

// TestFiguresOfAForgedPod: the bus says what volumes and containers a pod has. By that it makes no figure larger.
func TestFiguresOfAForgedPod(t *testing.T) {
	walk := func(_ context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		used := map[diskusage.Dir]diskusage.Usage{}
		for _, d := range dirs {
			used[d] = diskusage.Usage{UsedBytes: 10, MountRoot: strings.HasSuffix(d.Path, "/memory")}
		}
		return used, nil
	}
	p := newPod("u")
	p.Spec.Volumes[1].EmptyDir.Medium = v1.StorageMediumDefault // it is a tmpfs all the same
	p.Spec.Containers = []v1.Container{{Name: "main"}}
	for range 100 {
		p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[0])
		p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
	}
	for _, runtime := range []layers{nil, {"u": {"main": 0}}} {
		run(t, runtime, walk, func(t *testing.T, m *Measurer) {
			// The volume on the disk, the container's log and termination log, etc-hosts, and the other logs.
			f, err := m.Of(t.Context(), p)
			if f == nil {
				t.Fatal(err)
			}
			if got := *f.EphemeralStorage.UsedBytes; got != 50 {
				t.Errorf("%d bytes in all", got)
			}
		})
	}
}

// TestWithoutTheRuntime what the layers take is not known, and the rest is.
func TestWithoutTheRuntime(t *testing.T) {
	walk := func(_ context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		used := map[diskusage.Dir]diskusage.Usage{}
		for _, d := range dirs {
			used[d] = diskusage.Usage{UsedBytes: 10}
		}
		return used, nil
	}
	p := newPod("u")
	p.Spec.Containers = []v1.Container{{Name: "main"}}
	run(t, layers(nil), walk, func(t *testing.T, m *Measurer) {
		f, err := m.Of(t.Context(), p)
		if err == nil || f == nil || *f.VolumeStats[0].UsedBytes != 10 || *f.Containers[0].Logs.UsedBytes != 10 ||
			*f.EphemeralStorage.UsedBytes != 50 {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

// TestAPodThatIsTooLarge takes at least what was seen of it, and is left alone then as one that cannot be measured.
func TestAPodThatIsTooLarge(t *testing.T) {
	var walks atomic.Int32
	walk := func(ctx context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		walks.Add(1)
		<-ctx.Done()
		return map[diskusage.Dir]diskusage.Usage{dirs[0]: {UsedBytes: 7}}, ctx.Err()
	}
	run(t, layers{}, walk, func(t *testing.T, m *Measurer) {
		_, _ = m.Of(t.Context(), newPod("u"))
		time.Sleep(deadline)
		for range 2 {
			f, err := m.Of(t.Context(), newPod("u"))
			if !errors.Is(err, context.DeadlineExceeded) || f == nil || *f.VolumeStats[0].UsedBytes != 7 {
				t.Errorf("%+v, %v", f, err)
			}
			time.Sleep(kept)
		}
		if n := walks.Load(); n != 1 {
			t.Errorf("it was walked through %d times", n)
		}
	})
}

// TestALargePodShieldsNoOther: its caller does not wait for it, and finds what was measured later.
func TestALargePodShieldsNoOther(t *testing.T) {
	var mu sync.Mutex
	walks := map[string]int{}
	walk := func(ctx context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		takes := time.Second
		if strings.Contains(dirs[0].Path, "large") {
			takes = 30 * time.Second
		}
		mu.Lock()
		walks[dirs[0].Path]++
		mu.Unlock()
		select {
		case <-time.After(takes):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	run(t, layers{}, walk, func(t *testing.T, m *Measurer) {
		began := time.Now()
		if _, err := m.Of(t.Context(), newPod("large")); !errors.Is(err, ErrNotYet) || time.Since(began) != patience {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := m.Of(t.Context(), newPod("small")); err != nil {
			t.Errorf("the other: %v", err)
		}
		time.Sleep(30 * time.Second)
		for range 2 {
			if _, err := m.Of(t.Context(), newPod("large")); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(kept)
		if _, err := m.Of(t.Context(), newPod("small")); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for path, n := range walks {
			if want := 1 + strings.Count(path, "small"); n != want {
				t.Errorf("%s is walked through %d times, want %d", path, n, want)
			}
		}
	})
}

// TestAPodThatCannotBeMeasured takes no place for ever, and is left alone for a while.
func TestAPodThatCannotBeMeasured(t *testing.T) {
	var walks atomic.Int32
	hangs := func(ctx context.Context, _ []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		walks.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	run(t, layers{}, hangs, func(t *testing.T, m *Measurer) {
		for i := range maxUnder + 1 {
			if _, err := m.Of(t.Context(), newPod(types.UID(fmt.Sprint(i)))); !errors.Is(err, ErrNotYet) {
				t.Error(err)
			}
		}
		if n := walks.Load(); n != maxUnder {
			t.Errorf("%d pods are measured at one time", n)
		}
		time.Sleep(deadline)
		if _, err := m.Of(t.Context(), newPod("0")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := m.Of(t.Context(), newPod("next")); !errors.Is(err, ErrNotYet) || walks.Load() != maxUnder+1 {
			t.Errorf("%v after %d walks", err, walks.Load())
		}
	})
	run(t, layers{}, hangs, func(t *testing.T, m *Measurer) {
		if _, err := m.Of(t.Context(), newPod("../u")); err == nil || errors.Is(err, ErrNotYet) {
			t.Errorf("a name that leads elsewhere: %v", err)
		}
	})
}

// TestLargePodsLeaveTurnsToOthers: however many pods take long, which are asked for again and again, one that does not
// is measured soon. Those that take long are measured one after the other, each to the end.
func TestLargePodsLeaveTurnsToOthers(t *testing.T) {
	var mu sync.Mutex
	under, most := 0, 0
	walk := func(ctx context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error) {
		mu.Lock()
		under++
		most = max(most, under)
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			under--
		}()
		takes := time.Second
		if strings.Contains(dirs[0].Path, "large") {
			takes = deadline - time.Second
		}
		select {
		case <-time.After(takes):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	run(t, layers{}, walk, func(t *testing.T, m *Measurer) {
		measured := map[string]int{}
		began := time.Now()
		look := func(names ...string) {
			for _, name := range names {
				if _, err := m.Of(t.Context(), newPod(types.UID(name))); err == nil {
					measured[name]++
				}
			}
		}
		var large []string
		for i := range 9 {
			large = append(large, fmt.Sprint("large", i))
		}
		look(large...)
		for i := range 3 {
			small := fmt.Sprint("small", i)
			asked := time.Now()
			for measured[small] == 0 && time.Since(asked) < time.Hour {
				look(large...)
				look(small)
				time.Sleep(10 * time.Second)
			}
			if waited, may := time.Since(asked), time.Duration(len(large))*(turn+30*time.Second); waited > may {
				t.Errorf("%s waits for %v", small, waited)
			}
		}
		for len(measured) < len(large)+3 && time.Since(began) < 3*time.Hour {
			look(large...)
			time.Sleep(10 * time.Second)
		}
		if len(measured) != len(large)+3 {
			t.Errorf("measured are only %v", measured)
		}
		came := time.Now() // by now it is known who takes long
		for measured["late"] == 0 && time.Since(came) < time.Hour {
			look(large...)
			look("late")
		}
		if waited := time.Since(came); waited > time.Minute {
			t.Errorf("a pod that comes late waits for %v", waited)
		}
		if most > maxUnder {
			t.Errorf("%d pods are measured at one time", most)
		}
	})
}
