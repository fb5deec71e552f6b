// Package capacity reads what the node offers to pods.
//
// It reads /proc, /sys, the file system of --root-dir and the reservations of the kubelet's configuration, once at
// the start.
package capacity

import (
	"fmt"
	"maps"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/podsync/internal/cgroups"
)

// Capacity is what the node has and what pods may use of it.
type Capacity struct {
	Total, Allocatable v1.ResourceList
	// Limits and Enforced are what the cgroup of all pods is limited to, without and with
	// enforceNodeAllocatable of pods: Total, and that without the reservations. Only they
	// know of the number of processes, which the API does not.
	Limits, Enforced v1.ResourceList
	SystemUUID       string
	BootID           string
}

// Read reads them. It makes the root folder, because it measures the file system of the folder.
func Read(k *kubeletconfig.Config) (Capacity, error) {
	if err := os.MkdirAll(k.Node.RootDir, 0o750); err != nil {
		return Capacity{}, fmt.Errorf("--root-dir=%s: %w", k.Node.RootDir, err)
	}
	source := nodeinfo.Source{}
	total, err := source.Capacity(nodeinfo.Options{
		RootDir: k.Node.RootDir, MaxPods: k.Kubelet.MaxPods, PodsPerCore: k.Kubelet.PodsPerCore,
		LocalStorageCapacityIsolation: *k.Kubelet.LocalStorageCapacityIsolation,
	})
	if err != nil {
		return Capacity{}, fmt.Errorf("read the node's capacity: %w", err)
	}
	system, kube := k.Reserved()
	reservation := nodeinfo.Reservation{
		System: system, Kube: kube, EvictionHard: k.Kubelet.EvictionHard,
		IgnoreEviction: k.Node.AllocatableIgnoreEviction,
	}
	if err := nodeinfo.Check(total, reservation); err != nil {
		return Capacity{}, err
	}
	allocatable, err := nodeinfo.Allocatable(total, reservation)
	if err != nil {
		return Capacity{}, err
	}
	limits, enforced, err := podLimits(source, total, reservation)
	if err != nil {
		return Capacity{}, err
	}
	host, err := source.Machine()
	if err != nil {
		return Capacity{}, fmt.Errorf("read the machine's identity: %w", err)
	}
	return Capacity{total, allocatable, limits, enforced, host.SystemUUID, host.BootID}, nil
}

// podLimits returns what all pods together are limited to, without and with the reservations.
func podLimits(source nodeinfo.Source, total v1.ResourceList,
	r nodeinfo.Reservation) (limits, enforced v1.ResourceList, err error) {
	limits = maps.Clone(total)
	processes, err := source.ProcessLimit()
	if err != nil {
		return nil, nil, err
	}
	limits[cgroups.ResourcePIDs] = *resource.NewQuantity(processes, resource.DecimalSI)
	enforced, err = nodeinfo.Enforced(limits, r)
	return limits, enforced, err
}
