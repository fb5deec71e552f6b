// Package message writes the kubelet's words about an eviction: the message of the pod's status and of its event, and
// the annotations of the event.
package message

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// The keys of the annotations, which tools read.
const (
	offendingContainers      = "offending_containers"
	offendingContainersUsage = "offending_containers_usage"
	offendingPod             = "offending_pod"
	offendingPodUsage        = "offending_pod_usage"
	starvedResource          = "starved_resource"
)

const (
	lowOn     = "The node was low on resource: %v. "
	met       = "Threshold quantity: %v, available: %v. "
	container = "Container %s was using %s, request is %s, has larger consumption of %v. "
	pod       = "Pod %s was using %s, request is %s, has larger consumption of %v. "
)

// Of returns the message and the annotations for a pod that is evicted because the node is low on a resource. all are
// the thresholds that are met, most important first; figures is nil if the pod has none.
func Of(starved v1.ResourceName, p *v1.Pod, figures *statsapi.PodStats, all []threshold.Threshold,
	seen threshold.Observations) (string, map[string]string) {
	var text strings.Builder
	fmt.Fprintf(&text, lowOn, starved)
	if i := slices.IndexFunc(all, func(t threshold.Threshold) bool {
		_, ok := seen[t.Signal]
		return ok && t.Signal.Resource() == starved
	}); i >= 0 {
		o := seen[all[i].Signal]
		quantity := all[i].Value.Of(o.Capacity)
		fmt.Fprintf(&text, met, &quantity, resource.NewQuantity(o.Available, formatOf(starved)))
	}
	annotations := map[string]string{}
	if figures == nil {
		return text.String(), annotations
	}
	if request, ok := podRequest(p, starved); ok && figures.Memory != nil {
		used := memory(figures.Memory)
		if used == nil {
			used = &resource.Quantity{Format: resource.BinarySI}
		}
		fmt.Fprintf(&text, pod, p.Name, used, &request, starved)
		annotations[offendingPod], annotations[offendingPodUsage] = p.Name, used.String()
	}
	var names, usages []string
	containers := slices.Concat(p.Spec.Containers, p.Spec.InitContainers)
	for i := range figures.Containers {
		f := &figures.Containers[i]
		at := slices.IndexFunc(containers, func(c v1.Container) bool { return c.Name == f.Name })
		if at < 0 {
			continue
		}
		request, used := containers[at].Resources.Requests[starved], usage(starved, f)
		if used != nil && used.Cmp(request) > 0 {
			fmt.Fprintf(&text, container, f.Name, used, &request, starved)
			names, usages = append(names, f.Name), append(usages, used.String())
		}
	}
	annotations[offendingContainers] = strings.Join(names, ",")
	annotations[offendingContainersUsage] = strings.Join(usages, ",")
	annotations[starvedResource] = string(starved)
	return text.String(), annotations
}

// podRequest is the memory that the pod itself requests (KEP-2837).
func podRequest(p *v1.Pod, low v1.ResourceName) (resource.Quantity, bool) {
	if low != v1.ResourceMemory || !resourcehelper.IsPodLevelResourcesSet(p) {
		return resource.Quantity{}, false
	}
	q, ok := p.Spec.Resources.Requests[low]
	return q, ok
}

// formatOf is how the kubelet writes an amount of a resource.
func formatOf(name v1.ResourceName) resource.Format {
	if name == v1.ResourceMemory || name == v1.ResourceEphemeralStorage {
		return resource.BinarySI
	}
	return resource.DecimalSI
}

// usage is how much a container uses of the resource; nil if it is not known, or not measured.
func usage(low v1.ResourceName, f *statsapi.ContainerStats) *resource.Quantity {
	switch low {
	case v1.ResourceEphemeralStorage:
		if f.Rootfs != nil && f.Rootfs.UsedBytes != nil && f.Logs != nil && f.Logs.UsedBytes != nil {
			return resource.NewQuantity(int64(*f.Rootfs.UsedBytes+*f.Logs.UsedBytes), resource.BinarySI)
		}
	case v1.ResourceMemory:
		return memory(f.Memory)
	}
	return nil
}

func memory(m *statsapi.MemoryStats) *resource.Quantity {
	if m == nil || m.WorkingSetBytes == nil {
		return nil
	}
	return resource.NewQuantity(int64(*m.WorkingSetBytes), resource.BinarySI)
}
