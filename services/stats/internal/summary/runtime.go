package summary

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

// runtimePods are the pods with a container that runs, by what the runtime measures (feature gate
// PodAndContainerStatsFromCRI). A sandbox that podsync has not published is none of a pod's.
func (b *builder) runtimePods() map[string]*statsapi.PodStats {
	all := map[string]*statsapi.PodStats{}
	for uid, pod := range b.Pods {
		sandbox := b.Runtime.Sandboxes[pod.SandboxID].GetLinux()
		if sandbox == nil {
			continue
		}
		p := &statsapi.PodStats{
			PodRef:    statsapi.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: uid},
			StartTime: metav1.NewTime(b.created(pod.SandboxID, time.Time{})),
			CPU:       runtimeCPU(sandbox.GetCpu()),
			Memory:    runtimeMemory(sandbox.GetMemory()),
		}
		for _, c := range sandbox.GetContainers() {
			if running := runningContainer(pod, c.GetAttributes().GetId()); running != nil {
				p.Containers = append(p.Containers, b.runtimeContainer(uid, running, c))
			}
		}
		if len(p.Containers) == 0 {
			continue
		}
		p.Swap = sumSwap(p.Containers)
		if !b.CPUAndMemory {
			p.IO = runtimeIO(sandbox.GetIo())
			p.Network = runtimeNetwork(sandbox.GetNetwork())
			if n := sandbox.GetProcess().GetProcessCount(); n != nil {
				p.ProcessStats = &statsapi.ProcessStats{ProcessCount: number(n)}
			}
		}
		all[uid], b.known[uid] = p, pod
	}
	return all
}

// runningContainer is the pod's container of this ID if it runs.
func runningContainer(pod *nodepods.Pod, id string) *nodepods.Container {
	for i := range pod.Containers {
		if c := &pod.Containers[i]; c.ID == id && c.IsRunning() {
			return c
		}
	}
	return nil
}

func (b *builder) runtimeContainer(podUID string, c *nodepods.Container, u *runtimeapi.ContainerStats,
) statsapi.ContainerStats {
	s := statsapi.ContainerStats{
		Name: c.Name, StartTime: metav1.NewTime(b.created(c.ID, c.Started)),
		CPU: runtimeCPU(u.GetCpu()), Memory: runtimeMemory(u.GetMemory()), Swap: runtimeSwap(u.GetSwap()),
	}
	if b.CPUAndMemory {
		return s
	}
	s.IO, s.Logs = runtimeIO(u.GetIo()), b.logs(podUID, c.Name)
	if layer := u.GetWritableLayer(); layer != nil {
		s.Rootfs = b.taken(cri.LayerOf(layer))
	}
	return s
}

func runtimeCPU(u *runtimeapi.CpuUsage) *statsapi.CPUStats {
	if u == nil {
		return nil
	}
	return &statsapi.CPUStats{
		Time: at(u.GetTimestamp()), UsageNanoCores: number(u.GetUsageNanoCores()),
		UsageCoreNanoSeconds: number(u.GetUsageCoreNanoSeconds()), PSI: runtimePSI(u.GetPsi()),
	}
}

func runtimeMemory(u *runtimeapi.MemoryUsage) *statsapi.MemoryStats {
	if u == nil {
		return nil
	}
	return &statsapi.MemoryStats{
		Time: at(u.GetTimestamp()), AvailableBytes: number(u.GetAvailableBytes()), UsageBytes: number(u.GetUsageBytes()),
		WorkingSetBytes: number(u.GetWorkingSetBytes()), RSSBytes: number(u.GetRssBytes()),
		PageFaults: number(u.GetPageFaults()), MajorPageFaults: number(u.GetMajorPageFaults()), PSI: runtimePSI(u.GetPsi()),
	}
}

func runtimeSwap(u *runtimeapi.SwapUsage) *statsapi.SwapStats {
	if u == nil {
		return nil
	}
	return &statsapi.SwapStats{
		Time: at(u.GetTimestamp()), SwapUsageBytes: number(u.GetSwapUsageBytes()),
		SwapAvailableBytes: number(u.GetSwapAvailableBytes()),
	}
}

// sumSwap is the swap of a pod. CRI has none for a sandbox.
func sumSwap(containers []statsapi.ContainerStats) *statsapi.SwapStats {
	var total *statsapi.SwapStats
	for _, c := range containers {
		if c.Swap == nil {
			continue
		}
		if total == nil {
			total = &statsapi.SwapStats{}
		}
		total.Time = c.Swap.Time
		total.SwapUsageBytes = sum(total.SwapUsageBytes, c.Swap.SwapUsageBytes)
		total.SwapAvailableBytes = sum(total.SwapAvailableBytes, c.Swap.SwapAvailableBytes)
	}
	return total
}

func runtimeIO(u *runtimeapi.IoUsage) *statsapi.IOStats {
	if u == nil {
		return nil
	}
	return &statsapi.IOStats{Time: at(u.GetTimestamp()), PSI: runtimePSI(u.GetPsi())}
}

func runtimeNetwork(u *runtimeapi.NetworkUsage) *statsapi.NetworkStats {
	if u == nil {
		return nil
	}
	s := &statsapi.NetworkStats{
		Time:           at(u.GetTimestamp()),
		InterfaceStats: runtimeInterface(u.GetDefaultInterface()),
		Interfaces:     make([]statsapi.InterfaceStats, 0, len(u.GetInterfaces())),
	}
	for _, i := range u.GetInterfaces() {
		s.Interfaces = append(s.Interfaces, runtimeInterface(i))
	}
	return s
}

func runtimeInterface(u *runtimeapi.NetworkInterfaceUsage) statsapi.InterfaceStats {
	return statsapi.InterfaceStats{
		Name: u.GetName(), RxBytes: number(u.GetRxBytes()), RxErrors: number(u.GetRxErrors()),
		TxBytes: number(u.GetTxBytes()), TxErrors: number(u.GetTxErrors()),
	}
}

func runtimePSI(p *runtimeapi.PsiStats) *statsapi.PSIStats {
	if p == nil {
		return nil
	}
	data := func(d *runtimeapi.PsiData) statsapi.PSIData {
		return statsapi.PSIData{
			Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300(),
		}
	}
	return &statsapi.PSIStats{Full: data(p.GetFull()), Some: data(p.GetSome())}
}

// number is nil if the runtime does not say.
func number(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}

func at(nanoseconds int64) metav1.Time { return metav1.NewTime(time.Unix(0, nanoseconds)) }
