package summary

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

// runtimeContainer are the runtime's figures of a container.
func runtimeContainer(id string, cpu uint64) *runtimeapi.ContainerStats {
	value := func(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: id},
		Cpu:        &runtimeapi.CpuUsage{Timestamp: now.UnixNano(), UsageCoreNanoSeconds: value(cpu)},
		Memory:     &runtimeapi.MemoryUsage{Timestamp: now.UnixNano(), WorkingSetBytes: value(1 << 20)},
		Swap:       &runtimeapi.SwapUsage{Timestamp: now.UnixNano(), SwapUsageBytes: value(5)},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp: now.UnixNano(), UsedBytes: value(100), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/layers"},
		},
	}
}

// With the runtime's own figures, those of the cgroups are not read, and what has ended has none.
func TestFiguresOfTheRuntime(t *testing.T) {
	in := input()
	in.Pods = map[string]*nodepods.Pod{
		"u1": {Pod: object("default", "web"), SandboxID: "s1", Containers: []nodepods.Container{
			{Name: "main", ID: "c1", State: nodepods.Running},
			{Name: "side", ID: "c2", State: nodepods.Running},
			{Name: "init", ID: "c3"},
		}},
		"u2": {Pod: object("default", "done"), SandboxID: "s2", Containers: []nodepods.Container{{ID: "c4"}}},
		"u3": {Pod: object("default", "new")},
	}
	in.Created = cri.Created{"s1": now.Add(-time.Hour), "c1": now.Add(-time.Minute)}
	in.Runtime = &cri.PodStats{Supported: true, Sandboxes: map[string]*runtimeapi.PodSandboxStats{
		"s1": {Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu:     &runtimeapi.CpuUsage{UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: 42}},
			Process: &runtimeapi.ProcessUsage{ProcessCount: &runtimeapi.UInt64Value{Value: 3}},
			Network: &runtimeapi.NetworkUsage{
				DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: &runtimeapi.UInt64Value{Value: 9}},
			},
			Containers: []*runtimeapi.ContainerStats{
				runtimeContainer("c2", 2), runtimeContainer("c1", 1), runtimeContainer("c3", 3), runtimeContainer("stranger", 4),
			},
		}},
		"s2": {Linux: &runtimeapi.LinuxPodSandboxStats{Containers: []*runtimeapi.ContainerStats{runtimeContainer("c4",
			1)}}},
		"stranger": {Linux: &runtimeapi.LinuxPodSandboxStats{}},
	}}
	all := Build(in).Pods
	if len(all) != 1 || all[0].PodRef.UID != "u1" {
		t.Fatalf("pods: %+v", all)
	}
	p := all[0]
	if !p.StartTime.Time.Equal(now.Add(-time.Hour)) || *p.CPU.UsageCoreNanoSeconds != 42 || p.CPU.UsageNanoCores != nil {
		t.Errorf("pod: %+v %+v", p, p.CPU)
	}
	if *p.ProcessStats.ProcessCount != 3 || p.Network.Name != "eth0" || *p.Network.RxBytes != 9 ||
		p.Network.TxBytes != nil {
		t.Errorf("processes %v, network %+v", p.ProcessStats, p.Network)
	}
	if *p.Swap.SwapUsageBytes != 10 || p.Swap.SwapAvailableBytes != nil || p.Memory != nil {
		t.Errorf("swap %+v, memory %+v", p.Swap, p.Memory)
	}
	if len(p.Containers) != 2 || p.Containers[0].Name != "main" || p.Containers[1].Name != "side" {
		t.Fatalf("containers: %+v", p.Containers)
	}
	if c := p.Containers[0]; *c.CPU.UsageCoreNanoSeconds != 1 || *c.Rootfs.UsedBytes != 100 ||
		!c.StartTime.Time.Equal(now.Add(-time.Minute)) {
		t.Errorf("container: %+v", c)
	}
	in.CPUAndMemory = true
	if p = Build(in).Pods[0]; p.Network != nil || p.ProcessStats != nil || p.Containers[0].Rootfs != nil || p.Swap == nil {
		t.Errorf("with CPU and memory only: %+v", p)
	}
}
