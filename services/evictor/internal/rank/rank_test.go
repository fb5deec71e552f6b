package rank

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// plan is a pod in plain numbers: what it has of each, and what it requests.
type plan struct {
	name                  string
	priority              int32
	known                 bool
	memory, memoryRequest int64
	layer, logs, volume   int64
	inodes                int64
	diskRequest           int64
	processes             int64
}

func (p plan) pod() *v1.Pod {
	requests := v1.ResourceList{}
	if p.memoryRequest > 0 {
		requests[v1.ResourceMemory] = *resource.NewQuantity(p.memoryRequest, resource.BinarySI)
	}
	if p.diskRequest > 0 {
		requests[v1.ResourceEphemeralStorage] = *resource.NewQuantity(p.diskRequest, resource.BinarySI)
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name}, Spec: v1.PodSpec{
		Priority:   &p.priority,
		Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: requests}}},
		Volumes:    []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}},
	}}
}

func (p plan) figures() *statsapi.PodStats {
	if !p.known {
		return nil
	}
	n := func(v int64) *uint64 { return new(uint64(v)) }
	return &statsapi.PodStats{
		Memory:       &statsapi.MemoryStats{WorkingSetBytes: n(p.memory)},
		ProcessStats: &statsapi.ProcessStats{ProcessCount: n(p.processes)},
		Containers: []statsapi.ContainerStats{{
			Rootfs: &statsapi.FsStats{UsedBytes: n(p.layer), InodesUsed: n(p.inodes)},
			Logs:   &statsapi.FsStats{UsedBytes: n(p.logs)},
		}},
		VolumeStats: []statsapi.VolumeStats{{Name: "v", FsStats: statsapi.FsStats{UsedBytes: n(p.volume)}}},
	}
}

// before is the documented order, written down once more in plain numbers: whether a must go before b. See
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#pod-selection-for-kubelet-eviction
func before(s signal.Signal, a, b plan) bool {
	use := func(p plan) (used, request, subtract int64) {
		switch s {
		case signal.MemoryAvailable:
			return p.memory, p.memoryRequest, p.memoryRequest
		case signal.NodeFsInodesFree:
			return p.inodes, 0, p.diskRequest
		default:
			return p.layer + p.logs + p.volume, p.diskRequest, p.diskRequest
		}
	}
	if s == signal.PIDAvailable {
		if a.priority != b.priority {
			return a.priority < b.priority
		}
		if a.known != b.known {
			return !a.known
		}
		return a.known && a.processes > b.processes
	}
	if a.known != b.known {
		return !a.known
	}
	usedA, requestA, subtractA := use(a)
	usedB, requestB, subtractB := use(b)
	if exceedsA, exceedsB := usedA > requestA, usedB > requestB; a.known && exceedsA != exceedsB {
		return exceedsA
	}
	if a.priority != b.priority {
		return a.priority < b.priority
	}
	return a.known && usedA-subtractA > usedB-subtractB
}

func TestRandomMixesRankAsDocumented(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		some := func() int64 { return int64(r.IntN(4)) * 100 }
		plans := map[string]plan{}
		var names []string
		for i := range 12 {
			p := plan{
				name: fmt.Sprint("p", i), priority: int32(r.IntN(3)), known: r.IntN(6) > 0,
				memory: some(), memoryRequest: some(), layer: some(), logs: some(), volume: some(), inodes: some(),
				diskRequest: some() * 2, processes: some(),
			}
			plans[p.name], names = p, append(names, p.name)
		}
		for _, s := range []signal.Signal{
			signal.MemoryAvailable, signal.NodeFsAvailable, signal.NodeFsInodesFree, signal.PIDAvailable,
		} {
			var pods []*v1.Pod
			for _, name := range names {
				pods = append(pods, plans[name].pod())
			}
			By(s, threshold.Layout{}, pods, func(p *v1.Pod) *statsapi.PodStats { return plans[p.Name].figures() })
			for i := range pods {
				for _, later := range pods[i+1:] {
					if before(s, plans[later.Name], plans[pods[i].Name]) {
						t.Errorf("seed %d, %s: %+v comes before %+v", seed, s, plans[pods[i].Name], plans[later.Name])
					}
				}
			}
		}
	}
}

func TestWhatIsOnAFilesystem(t *testing.T) {
	p := plan{known: true, layer: 1, logs: 10, volume: 100}
	one, split := threshold.Layout{ImageFs: true}, threshold.Layout{ImageFs: true, SplitContainerFs: true}
	for _, test := range []struct {
		signal signal.Signal
		layout threshold.Layout
		want   int64
	}{
		{signal.NodeFsAvailable, threshold.Layout{}, 111}, {signal.ImageFsAvailable, threshold.Layout{}, 111},
		{signal.ContainerFsAvailable, threshold.Layout{}, 111},
		{signal.NodeFsAvailable, one, 110}, {signal.ImageFsAvailable, one, 1}, {signal.ContainerFsAvailable, one, 1},
		{signal.NodeFsAvailable, split, 111}, {signal.ImageFsAvailable, split, 0},
		{signal.ContainerFsAvailable, split, 111},
	} {
		if got := diskUsage(p.pod(), p.figures(), diskParts(test.signal, test.layout),
			v1.ResourceEphemeralStorage); got != test.want {
			t.Errorf("%s with %+v: %d, want %d", test.signal, test.layout, got, test.want)
		}
	}
}

// TestWhatIsOfNoContainerThatRuns: init containers that have ended leave their layers and logs, which only the figure
// of the whole pod has.
func TestWhatIsOfNoContainerThatRuns(t *testing.T) {
	p := plan{known: true, layer: 1, logs: 10, volume: 100, inodes: 5}
	f := p.figures()
	f.EphemeralStorage = &statsapi.FsStats{UsedBytes: new(uint64(1111)), InodesUsed: new(uint64(50))}
	split := threshold.Layout{ImageFs: true}
	for _, test := range []struct {
		signal signal.Signal
		layout threshold.Layout
		of     v1.ResourceName
		want   int64
	}{
		{signal.NodeFsAvailable, threshold.Layout{}, v1.ResourceEphemeralStorage, 1111},
		{signal.NodeFsInodesFree, threshold.Layout{}, signal.Inodes, 50},
		{signal.NodeFsAvailable, split, v1.ResourceEphemeralStorage, 110}, // which of it is there is not known
		{signal.ImageFsAvailable, split, v1.ResourceEphemeralStorage, 1},
	} {
		if got := diskUsage(p.pod(), f, diskParts(test.signal, test.layout), test.of); got != test.want {
			t.Errorf("%s with %+v: %d, want %d", test.signal, test.layout, got, test.want)
		}
	}
}

func TestOverheadCountsWithARequest(t *testing.T) {
	p := plan{memoryRequest: 100}.pod()
	p.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: resource.MustParse("20"), v1.ResourceCPU: resource.MustParse("1")}
	got := []string{}
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		q := Request(p, name)
		got = append(got, q.String())
	}
	if !slices.Equal(got, []string{"120", "0"}) {
		t.Errorf("requests %q", got)
	}
}
