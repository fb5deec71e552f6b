package kubeletconfig

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// What enforceNodeAllocatable may hold.
const (
	enforcePods                       = "pods"
	enforceSystemReserved             = "system-reserved"
	enforceSystemReservedCompressible = "system-reserved-compressible"
	enforceKubeReserved               = "kube-reserved"
	enforceKubeReservedCompressible   = "kube-reserved-compressible"
	enforceNone                       = "none"
)

func validateReservations(p *problems, k *kc) {
	validateEnforcement(p, k)
	for name, reserved := range map[string]map[string]string{
		"systemReserved": k.SystemReserved,
		"kubeReserved":   k.KubeReserved,
	} {
		for _, what := range slices.Sorted(maps.Keys(reserved)) {
			at := name + "." + what
			switch corev1.ResourceName(what) {
			case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "pid":
			default:
				p.add(at, reserved[what], "this resource cannot be reserved",
					"write cpu, memory, ephemeral-storage or pid")
				continue
			}
			quantity, err := resource.ParseQuantity(reserved[what])
			p.check(err == nil, at, reserved[what], "it is no quantity", "write one such as 200m or 500Mi")
			p.check(err != nil || quantity.Sign() >= 0, at, reserved[what], "the quantity is negative",
				"write 0 or more")
		}
	}
	for what, share := range k.QOSReserved {
		p.check(what == string(corev1.ResourceMemory), "qosReserved."+what, share,
			"only memory can be reserved by QoS class", "remove it")
		number, isPercentage := strings.CutSuffix(share, "%")
		percent, err := strconv.ParseInt(number, 10, 64)
		p.check(isPercentage && err == nil && 0 <= percent && percent <= 100, "qosReserved."+what, share,
			"it is no whole percentage", "write one such as 50%")
	}
	p.check(len(k.QOSReserved) == 0 || gateEnabled(k.FeatureGates, gateQOSReserved), "qosReserved", k.QOSReserved,
		"it needs the feature gate "+gateQOSReserved, "turn the gate on, or remove the field")
	if k.ReservedSystemCPUs != "" {
		_, err := cpuset.Parse(k.ReservedSystemCPUs)
		p.check(err == nil, "reservedSystemCPUs", k.ReservedSystemCPUs, "it is no list of CPUs",
			"write one such as 0-1,4")
		p.check(k.SystemReservedCgroup == "" && k.KubeReservedCgroup == "", "reservedSystemCPUs", k.ReservedSystemCPUs,
			"it excludes systemReservedCgroup and kubeReservedCgroup", "keep one of them")
	}
	seen := map[string]bool{}
	for i, reservation := range k.ReservedMemory {
		for name, quantity := range reservation.Limits {
			at := fmt.Sprintf("reservedMemory[%d].limits.%s", i, name)
			key := fmt.Sprintf("%d/%s", reservation.NumaNode, name)
			p.check(reservableMemory(name), at, quantity.String(), "this resource cannot be reserved",
				"write memory or hugepages-<size>")
			p.check(!quantity.IsZero(), at, quantity.String(), "the quantity is zero", "write more, or remove it")
			p.check(!seen[key], at, quantity.String(), "it is reserved twice for this NUMA node", "keep one")
			seen[key] = true
		}
	}
}

func validateEnforcement(p *problems, k *kc) {
	const name = "enforceNodeAllocatable"
	given := k.EnforceNodeAllocatable
	known := []string{enforceNone, enforcePods, enforceSystemReserved, enforceSystemReservedCompressible,
		enforceKubeReserved, enforceKubeReservedCompressible}
	for i, level := range given {
		at := fmt.Sprintf("%s[%d]", name, i)
		oneOf(p, at, level, known...)
		p.check(!slices.Contains(given[:i], level), at, level, "it is given twice", "keep one")
		needs := map[string]string{
			enforceSystemReserved: k.SystemReservedCgroup, enforceSystemReservedCompressible: k.SystemReservedCgroup,
			enforceKubeReserved: k.KubeReservedCgroup, enforceKubeReservedCompressible: k.KubeReservedCgroup,
		}
		if cgroup, ok := needs[level]; ok {
			field := map[bool]string{true: "systemReservedCgroup", false: "kubeReservedCgroup"}[strings.HasPrefix(level,
				enforceSystemReserved)]
			p.check(cgroup != "", at, level, field+" is not set", "set "+field+", or remove it")
			// The kubelet finds this when it sets the limits, and ends.
			reserved := strings.TrimSuffix(field, "Cgroup")
			amounts := map[string]map[string]string{"systemReserved": k.SystemReserved, "kubeReserved": k.KubeReserved}
			p.check(len(amounts[reserved]) > 0, at, level, reserved+" is empty",
				"set "+reserved+", or remove it")
		}
		if level != enforceNone && slices.Contains(known, level) {
			p.check(*k.CgroupsPerQOS, at, level, "cgroupsPerQOS is false",
				"set cgroupsPerQOS: true, or write none here")
		}
	}
	p.check(!slices.Contains(given, enforceNone) || len(given) == 1, name, given, "none excludes all others",
		"keep none, or the others")
	for _, pair := range [][2]string{{enforceSystemReserved, enforceSystemReservedCompressible},
		{enforceKubeReserved, enforceKubeReservedCompressible}} {
		p.check(!slices.Contains(given, pair[0]) || !slices.Contains(given, pair[1]), name, given,
			pair[0]+" and "+pair[1]+" exclude each other", "keep one")
	}
}

// evictionSignals are what a threshold may watch.
var evictionSignals = []string{
	"allocatableMemory.available", "containerfs.available", "containerfs.inodesFree", "imagefs.available",
	"imagefs.inodesFree",
	"memory.available", "nodefs.available", "nodefs.inodesFree", "pid.available",
}

func validateEviction(p *problems, k *kc) {
	known := func(field, signal, given string) bool {
		if slices.Contains(evictionSignals, signal) {
			return true
		}
		remedy := "write one of " + strings.Join(evictionSignals, ", ")
		if near := nearest(signal, evictionSignals); near != "" {
			remedy = "write " + near
		}
		p.add(field+"."+signal, given, "it is no eviction signal", remedy)
		return false
	}
	amounts := map[string]map[string]string{
		"evictionHard":           k.EvictionHard,
		"evictionSoft":           k.EvictionSoft,
		"evictionMinimumReclaim": k.EvictionMinimumReclaim,
	}
	for field, thresholds := range amounts {
		for _, signal := range slices.Sorted(maps.Keys(thresholds)) {
			given := thresholds[signal]
			if known(field, signal, given) {
				p.check(amountOK(given, field == "evictionMinimumReclaim"), field+"."+signal, given,
					"it is neither a positive quantity nor a percentage", "write one such as 500Mi or 10%")
			}
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(k.EvictionSoftGracePeriod)) {
		given := k.EvictionSoftGracePeriod[signal]
		if known("evictionSoftGracePeriod", signal, given) {
			period, err := time.ParseDuration(given)
			p.check(err == nil && period >= 0, "evictionSoftGracePeriod."+signal, given, "it is no duration",
				"write one such as 1m30s")
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(k.EvictionSoft)) {
		_, set := k.EvictionSoftGracePeriod[signal]
		p.check(set, "evictionSoft."+signal, k.EvictionSoft[signal], "it has no grace period",
			"set evictionSoftGracePeriod."+signal)
	}
}

// amountOK accepts 500Mi and 10%. A threshold of 0% or 100% turns its signal off; a reclaim of 0 is allowed.
func amountOK(given string, reclaim bool) bool {
	if strings.HasSuffix(given, "%") {
		percent, err := parsePercent(given)
		return err == nil && percent <= 100 && (percent > 0 || !reclaim)
	}
	quantity, err := resource.ParseQuantity(given)
	return err == nil && (quantity.Sign() > 0 || reclaim && quantity.Sign() == 0)
}

// parsePercent reads "10%" or "12.5%"; never a negative number.
func parsePercent(s string) (float64, error) {
	number, ok := strings.CutSuffix(s, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || percent < 0 || math.IsNaN(percent) {
		return 0, fmt.Errorf("%q is no percentage", s)
	}
	return percent, nil
}
