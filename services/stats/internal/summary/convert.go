package summary

import (
	"github.com/google/cadvisor/lib/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
)

// defaultInterface is the one whose figures a NetworkStats has as its own.
const defaultInterface = "eth0"

func cpu(c *cgroupstats.Cgroup) *statsapi.CPUStats {
	s := &statsapi.CPUStats{Time: metav1.NewTime(c.Stats.Timestamp)}
	if !c.Spec.HasCpu {
		s.UsageNanoCores, s.UsageCoreNanoSeconds = new(uint64), new(uint64)
		return s
	}
	s.UsageNanoCores, s.UsageCoreNanoSeconds = c.UsageNanoCores, &c.Stats.Cpu.Usage.Total
	s.PSI = psi(&c.Stats.Cpu.PSI)
	return s
}

func memory(c *cgroupstats.Cgroup) *statsapi.MemoryStats {
	s := &statsapi.MemoryStats{Time: metav1.NewTime(c.Stats.Timestamp)}
	if !c.Spec.HasMemory {
		s.WorkingSetBytes = new(uint64)
		return s
	}
	m := c.Stats.Memory
	s.UsageBytes, s.WorkingSetBytes, s.RSSBytes = &m.Usage, &m.WorkingSet, &m.RSS
	s.PageFaults, s.MajorPageFaults = &m.ContainerData.Pgfault, &m.ContainerData.Pgmajfault
	s.AvailableBytes = left(c.Spec.Memory.Limit, m.WorkingSet)
	s.PSI = psi(&m.PSI)
	return s
}

func swap(c *cgroupstats.Cgroup) *statsapi.SwapStats {
	if !c.Spec.HasMemory {
		return nil
	}
	return &statsapi.SwapStats{
		Time: metav1.NewTime(c.Stats.Timestamp), SwapUsageBytes: &c.Stats.Memory.Swap,
		SwapAvailableBytes: left(c.Spec.Memory.SwapLimit, c.Stats.Memory.Swap),
	}
}

// left is what a limit leaves; nil without a limit.
func left(limit, used uint64) *uint64 {
	if cgroupstats.Unlimited(limit) {
		return nil
	}
	rest := limit - min(used, limit)
	return &rest
}

func io(c *cgroupstats.Cgroup) *statsapi.IOStats {
	if !c.Spec.HasDiskIo || c.Stats.DiskIo == nil {
		return nil
	}
	return &statsapi.IOStats{Time: metav1.NewTime(c.Stats.Timestamp), PSI: psi(&c.Stats.DiskIo.PSI)}
}

func network(c *cgroupstats.Cgroup) *statsapi.NetworkStats {
	if !c.Spec.HasNetwork || c.Stats.Network == nil {
		return nil
	}
	s := &statsapi.NetworkStats{Time: metav1.NewTime(c.Stats.Timestamp)}
	for i := range c.Stats.Network.Interfaces {
		n := &c.Stats.Network.Interfaces[i]
		one := statsapi.InterfaceStats{
			Name: n.Name, RxBytes: &n.RxBytes, RxErrors: &n.RxErrors, TxBytes: &n.TxBytes, TxErrors: &n.TxErrors,
		}
		if n.Name == defaultInterface {
			s.InterfaceStats = one
		}
		s.Interfaces = append(s.Interfaces, one)
	}
	return s
}

func psi(p *model.PSIStats) *statsapi.PSIStats {
	data := func(d model.PSIData) statsapi.PSIData {
		return statsapi.PSIData{Total: d.Total, Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300}
	}
	return &statsapi.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

// keepHugePages takes from the node's available memory what is set aside as huge pages: its limit has them, and its
// use has not (feature gate HugepageAwareEviction).
func keepHugePages(node *statsapi.MemoryStats, machine *model.MachineInfo) {
	if node.AvailableBytes == nil || machine == nil {
		return
	}
	var kept uint64
	for _, h := range machine.HugePages {
		kept += h.PageSize * 1024 * h.NumPages
	}
	rest := *node.AvailableBytes - min(kept, *node.AvailableBytes)
	node.AvailableBytes = &rest
}
