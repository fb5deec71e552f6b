package summary

import (
	"encoding/json"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/testing/golden"
	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// cgroup has figures that are each of their own.
func cgroup(name string, kind cgroupstats.Kind, n uint64, limit uint64) *cgroupstats.Cgroup {
	psi := model.PSIStats{Full: model.PSIData{Total: n, Avg10: 1}, Some: model.PSIData{Total: n + 1, Avg300: 2}}
	rate := n + 2
	return &cgroupstats.Cgroup{
		Name: name, Kind: kind, UsageNanoCores: &rate,
		Spec: model.ContainerSpec{CreationTime: now.Add(-time.Hour), HasCpu: true, HasMemory: true, HasDiskIo: true,
			Memory: model.MemorySpec{Limit: limit, SwapLimit: limit}},
		Stats: &model.ContainerStats{
			Timestamp: now, Cpu: &model.CpuStats{Usage: model.CpuUsage{Total: n + 3}, PSI: psi},
			Memory: &model.MemoryStats{Usage: n + 4, WorkingSet: n + 5, RSS: n + 6, Swap: n + 7, PSI: psi,
				ContainerData: model.MemoryStatsMemoryData{Pgfault: n + 8, Pgmajfault: n + 9}},
			DiskIo:    &model.DiskIoStats{PSI: psi},
			Processes: &model.ProcessStats{ProcessCount: n + 10},
		},
	}
}

func withNetwork(c *cgroupstats.Cgroup) *cgroupstats.Cgroup {
	c.Spec.HasNetwork = true
	c.Stats.Network = &model.NetworkStats{Interfaces: []model.InterfaceStats{
		{Name: "eth0", RxBytes: 1, RxErrors: 2, TxBytes: 3, TxErrors: 4}, {Name: "eth1", RxBytes: 5},
	}}
	return c
}

// folders are what volumes and logs take.
type folders struct{}

func (folders) Volumes(uid string) []Volume {
	used := uint64(1000)
	return []Volume{
		{VolumeStats: statsapi.VolumeStats{Name: "scratch",
			FsStats: statsapi.FsStats{Time: metav1.NewTime(now), UsedBytes: &used}},
			Ephemeral: true},
		{VolumeStats: statsapi.VolumeStats{Name: "claim", FsStats: statsapi.FsStats{UsedBytes: &used}}},
	}
}

func (folders) Logs(_, container string) (Folder, bool) {
	return Folder{Time: now.Add(time.Second), Bytes: 20, Inodes: 2}, container == "main"
}

func (folders) Own(string) (Folder, bool) { return Folder{Time: now, Bytes: 3, Inodes: 1}, true }

func object(namespace, name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func input() Input {
	pod := &nodepods.Pod{Pod: object("ns", "p"), SandboxID: "sandbox", Containers: []nodepods.Container{
		{Name: "main", ID: "one", State: nodepods.Running},
		{Name: "aside", ID: "two", State: nodepods.Running},
		{Name: "init", ID: "three"},
	}}
	of := func(c *cgroupstats.Cgroup, id string, container *nodepods.Container) *cgroupstats.Cgroup {
		c.PodUID, c.ID, c.Pod, c.Container = "u", id, pod, container
		return c
	}
	all := cgroup("/kubepods", cgroupstats.Slice, 200, 1<<30)
	list := []*cgroupstats.Cgroup{
		withNetwork(cgroup("/", cgroupstats.Root, 100, 1<<34)), all,
		of(cgroup("/kubepods/podu", cgroupstats.PodKind, 300, 1<<20), "", nil),
		of(cgroup("/kubepods/podu/one", cgroupstats.Container, 400, 1<<20), "one", &pod.Containers[0]),
		of(withNetwork(cgroup("/kubepods/podu/sandbox", cgroupstats.Container, 500, math.MaxUint64)), "sandbox", nil),
		of(cgroup("/kubepods/podu/three", cgroupstats.Container, 700, 1<<20), "three", &pod.Containers[2]),
		of(cgroup("/kubepods/podu/two", cgroupstats.Container, 600, math.MaxUint64), "two", &pod.Containers[1]),
		{Name: "/kubepods/podv/x", Kind: cgroupstats.Container, PodUID: "v", ID: "x"},
	}
	list[6].UsageNanoCores = nil // its first sample
	used, inodes := uint64(5000), uint64(50)
	limit, tasks := int64(32768), int64(700)
	return Input{
		NodeName: "n", Began: now.Add(-time.Minute), HugePages: true, Created: cri.Created{"one": now.Add(-30 * time.Second)},
		Snapshot: &cgroupstats.Snapshot{
			ReadAt: now, Boot: now.Add(-24 * time.Hour), Cgroups: list, PSI: true,
			Machine: &model.MachineInfo{HugePages: []model.HugePagesInfo{{PageSize: 2048, NumPages: 4}}},
			System: map[string]*cgroupstats.Cgroup{"pods": all,
				"kubelet": cgroup("/agent", cgroupstats.Slice, 800, math.MaxUint64)},
			Tasks: cgroupstats.Tasks{Time: now, Limit: &limit, Running: &tasks},
		},
		RootFs: &fsusage.Usage{Time: now, Capacity: 1000, Free: 400, Available: 300, Inodes: 90, InodesFree: 80},
		Usage: &cri.Usage{
			Layers: map[string]cri.Layer{
				"one": {Time: now.Add(-time.Second), Mountpoint: "/images", Used: &used, Inodes: &inodes},
				"two": {Time: now.Add(-time.Second), Mountpoint: "/images", Used: new(uint64(7)), Inodes: new(uint64(1))},
			},
			Images: &cri.Layer{Time: now, Mountpoint: "/images", Used: &used},
		},
		Filesystems: map[string]fsusage.Usage{"/images": {Time: now, Capacity: 7000, Available: 6000, Inodes: 70,
			InodesFree: 60}},
		Folders: folders{},
	}
}

func TestBuild(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"whole.json":          func(*Input) {},
		"cpu-and-memory.json": func(in *Input) { in.CPUAndMemory = true },
		"nothing-else.json": func(in *Input) {
			in.Usage, in.Filesystems, in.Folders, in.RootFs, in.Created = nil, nil, nil, nil, nil
			in.Snapshot.Tasks = cgroupstats.Tasks{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			change(&in)
			text, err := json.MarshalIndent(Build(in), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, filepath.Join("testdata", name), string(text)+"\n")
		})
	}
}

// No figure is less than nothing: a limit below the use, as after a resize, leaves 0.
// TestHugePagesAreNotAvailable if the gate is on.
func TestHugePagesAreNotAvailable(t *testing.T) {
	in := input()
	with := Build(in)
	in.HugePages = false
	without := Build(in)
	const huge = 4 * 2048 << 10
	if got := *without.Node.Memory.AvailableBytes - *with.Node.Memory.AvailableBytes; got != huge {
		t.Errorf("%d bytes are huge pages, want %d", got, huge)
	}
}

func TestNothingIsNegative(t *testing.T) {
	in := input()
	for _, c := range in.Snapshot.Cgroups[:7] {
		c.Spec.Memory.Limit, c.Spec.Memory.SwapLimit = 1, 1
	}
	in.RootFs = &fsusage.Usage{Time: now, Capacity: 1, Free: 5, Available: 9, Inodes: 1, InodesFree: 7}
	text, err := json.Marshal(Build(in))
	if err != nil {
		t.Fatal(err)
	}
	s := Build(in)
	for _, v := range []*uint64{
		s.Node.Memory.AvailableBytes, s.Node.Swap.SwapAvailableBytes, s.Node.Fs.UsedBytes, s.Node.Fs.InodesUsed,
		s.Pods[0].Memory.AvailableBytes, s.Pods[0].Containers[0].Memory.AvailableBytes,
	} {
		if v == nil || *v != 0 {
			t.Fatalf("a figure is not 0 in %s", text)
		}
	}
}

// TestContainersThatHaveEndedCount: what init containers have written stays for as long as their pod does.
func TestContainersThatHaveEndedCount(t *testing.T) {
	in := input()
	before := Build(in).Pods[0]
	in.Usage.Layers["three"] = cri.Layer{Time: now, Mountpoint: "/images", Used: new(uint64(1 << 30)),
		Inodes: new(uint64(9))}
	after := Build(in).Pods[0]
	if bytes, inodes := *after.EphemeralStorage.UsedBytes-*before.EphemeralStorage.UsedBytes,
		*after.EphemeralStorage.InodesUsed-*before.EphemeralStorage.InodesUsed; bytes != 1<<30 || inodes != 9 {
		t.Errorf("%d bytes and %d inodes more", bytes, inodes)
	}
	if len(after.Containers) != len(before.Containers) {
		t.Errorf("%d containers are shown", len(after.Containers))
	}
}

// A sum without one container's layer would pass for all that the pod takes.
func TestAPartIsNotTheWhole(t *testing.T) {
	for name, change := range map[string]func(in *Input){
		"a layer is missing":       func(in *Input) { delete(in.Usage.Layers, "two") },
		"the runtime does not say": func(in *Input) { in.Usage = nil },
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			change(&in)
			s := Build(in).Pods[0].EphemeralStorage
			if s.UsedBytes != nil || s.InodesUsed != nil || s.CapacityBytes == nil {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The container's name may be known for a cgroup without a known pod.
func TestAContainerWithoutItsPodHasNoFigures(t *testing.T) {
	in := input()
	for _, c := range in.Snapshot.Cgroups {
		c.Pod = nil
	}
	if all := Build(in).Pods; len(all) != 0 {
		t.Errorf("%+v", all)
	}
}
