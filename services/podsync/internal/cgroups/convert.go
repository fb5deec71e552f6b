package cgroups

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits of the kernel's CPU controllers and how milli-CPUs map onto them.
const (
	// MinShares and MaxShares bound cpu.shares (kernel/sched/sched.h).
	MinShares = 2
	MaxShares = 262144
	// DefaultQuotaPeriod is the CFS period in microseconds.
	DefaultQuotaPeriod = 100000

	sharesPerCPU   = 1024
	milliPerCPU    = 1000
	minQuotaMicros = 1000
	maxWeight      = 10000
)

// MilliCPUToShares returns cpu.shares for a request in thousandths of a CPU. No request
// gets the minimum, not the kernel's default of 1024.
func MilliCPUToShares(milli int64) uint64 {
	milli = min(milli, MaxShares*milliPerCPU/sharesPerCPU)
	return uint64(max(milli*sharesPerCPU/milliPerCPU, MinShares))
}

// MilliCPUToQuota returns the CFS quota in microseconds a period for a limit in
// thousandths of a CPU; 0 when there is no limit. The smallest quota is 1 ms.
func MilliCPUToQuota(milli, periodMicros int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*periodMicros/milliPerCPU, minQuotaMicros)
}

// sharesToWeight maps cpu.shares [2, 262144] onto cgroup v2's cpu.weight [1, 10000], as
// KEP-2254 has it. runc has its own, newer curve for containers; the kubelet keeps this
// one for pods and QoS classes, and so do we.
func sharesToWeight(shares uint64) uint64 {
	if shares >= MaxShares {
		return maxWeight
	}
	return 1 + (shares-MinShares)*9999/262142
}

// PageSizeName returns a huge page size as the kernel's file names spell it ("2MB"),
// false for a size that has no such name.
func PageSizeName(bytes int64) (string, bool) {
	if bytes <= 0 {
		return "", false
	}
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	unit := 0
	for bytes >= 1024 && unit < len(units)-1 {
		if bytes%1024 != 0 {
			return "", false
		}
		bytes /= 1024
		unit++
	}
	return fmt.Sprintf("%d%s", bytes, units[unit]), true
}

// HugePages returns the huge page amounts of a list: page size as the kernel spells it →
// bytes. Names that do not parse are left out; the API validates them.
func HugePages(list v1.ResourceList) map[string]int64 {
	sums := map[string]int64{}
	for name, amount := range list {
		text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		size, err := resource.ParseQuantity(text)
		if err != nil {
			continue
		}
		if page, ok := PageSizeName(size.Value()); ok {
			sums[page] += amount.Value()
		}
	}
	return sums
}

// SharesToMilliCPU returns the thousandths of a CPU that make these shares. The least that a cgroup has is no request.
func SharesToMilliCPU(shares uint64) int64 {
	if shares <= MinShares {
		return 0
	}
	return int64((min(shares, MaxShares)*milliPerCPU + sharesPerCPU - 1) / sharesPerCPU)
}
