package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/microlet/microlet/services/internal/podcgroup"
	"github.com/microlet/microlet/services/internal/podutil"
)

// requests are what the pods of the classes request together.
type requests struct {
	burstableMilliCPU                 int64
	guaranteedMemory, burstableMemory int64 // in bytes
}

func requestsOf(pods []*v1.Pod) requests {
	var sum requests
	for _, p := range pods {
		of := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		switch podutil.QOSClass(p) {
		case v1.PodQOSGuaranteed:
			sum.guaranteedMemory = add(sum.guaranteedMemory, of, v1.ResourceMemory)
		case v1.PodQOSBurstable:
			sum.burstableMilliCPU = add(sum.burstableMilliCPU, of, v1.ResourceCPU)
			sum.burstableMemory = add(sum.burstableMemory, of, v1.ResourceMemory)
		}
	}
	return sum
}

func add(sum int64, of v1.ResourceList, name v1.ResourceName) int64 {
	return podutil.AddAmounts(sum, podutil.Amount(name, of[name]))
}

// UpdateQOS gives the burstable class the shares that its pods request together, and with MemoryReservation or
// QOSReserved the classes their memory. Call it when a pod comes or goes, and each minute.
func (m *Manager) UpdateQOS(pods []*v1.Pod) error {
	if !m.o.PerQOS {
		return nil
	}
	now := requestsOf(pods)
	m.qos.Lock()
	defer m.qos.Unlock()
	if m.qos.requests == now && time.Since(m.qos.written) < qosRewrite {
		return nil
	}
	burstable, bestEffort := m.qosResources(now)
	err := errors.Join(m.setClass(podcgroup.BurstablePart, burstable), m.setClass(podcgroup.BestEffortPart, bestEffort))
	if m.o.MemoryReservation && m.unified {
		m.protected.hard.Set(float64(now.guaranteedMemory))
		m.protected.soft.Set(float64(now.burstableMemory))
		err = errors.Join(err, m.set(m.root, protection(
			podutil.AddAmounts(now.guaranteedMemory, now.burstableMemory), now.burstableMemory)))
	}
	if err != nil {
		return fmt.Errorf("set the resources of the QoS classes: %w", err)
	}
	m.qos.requests, m.qos.written = now, time.Now()
	return nil
}

// protection is what the cgroup of all pods has of the memory that they request: the kernel protects a pod's only as
// far as that of the cgroups above it.
func protection(hard, soft int64) resources {
	return resources{unified: map[string]string{
		"memory.min": strconv.FormatInt(hard, 10), "memory.low": strconv.FormatInt(soft, 10),
	}}
}

// qosResources are what the two classes get.
func (m *Manager) qosResources(now requests) (burstable, bestEffort resources) {
	burstable.shares = ptr.To(MilliCPUToShares(now.burstableMilliCPU))
	bestEffort.shares = ptr.To[uint64](MinShares)
	if m.o.MemoryReservation {
		burstable.unified = map[string]string{"memory.low": strconv.FormatInt(now.burstableMemory, 10)}
	}
	allocatable := m.o.Allocatable.Memory().Value()
	if m.o.QOSReserved == nil || allocatable <= 0 {
		return burstable, bestEffort
	}
	// If the share of a class is used up, the kubelet gives it no limit at all (0) or an impossible one (below 0).
	least := int64(os.Getpagesize())
	left := allocatable - now.guaranteedMemory**m.o.QOSReserved/100
	burstable.memory = ptr.To(max(left, least))
	bestEffort.memory = ptr.To(max(left-now.burstableMemory**m.o.QOSReserved/100, least))
	return burstable, bestEffort
}

// setClass sets the resources of a class. A class that uses more memory than it may gets what it uses as its limit, so
// that it uses no more. cgroup v1 refuses a limit below the usage; v2 would kill pods, which are the wrong ones to pay
// for those of other classes that come, so it is not tried.
func (m *Manager) setClass(class string, r resources) error {
	n := m.root.Child(class)
	if !slices.Contains(m.needed, "memory") {
		r.memory = nil
	}
	if r.memory != nil && m.unified {
		used, err := m.memoryUsage(n)
		if err != nil {
			return err
		}
		r.memory = ptr.To(max(*r.memory, used))
	}
	err := m.set(n, r)
	if err == nil || r.memory == nil || m.unified {
		return err
	}
	used, e := m.memoryUsage(n)
	if e != nil || used <= *r.memory {
		return errors.Join(err, e)
	}
	r.memory = &used
	return m.set(n, r)
}

// memoryUsage is what a cgroup uses, in bytes.
func (m *Manager) memoryUsage(n podcgroup.Name) (int64, error) {
	path, err := m.path(n)
	if err != nil {
		return 0, err
	}
	return m.memoryUsageAt(path)
}

func (m *Manager) memoryUsageAt(path string) (int64, error) {
	file := filepath.Join(m.mounts["memory"], path, "memory.usage_in_bytes")
	if m.unified {
		file = filepath.Join(m.mounts[""], path, "memory.current")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read the memory of a cgroup: %w", err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of a cgroup: %s: %w", file, err)
	}
	return used, nil
}
