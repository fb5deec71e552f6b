// Package localstorage finds the pods that take more of the node's disk than they may.
//
// A pod has three kinds of limits: the sizeLimit of an emptyDir volume, the sum of its containers' limits of
// ephemeral-storage, and each container's own. The order, the messages and what counts are the kubelet's
// (localStorageEviction). The figures are those of the Summary API. A figure that is missing or old exceeds nothing.
// One of a large volume, which takes long to measure, is not old for that; see package usage.
package localstorage

import (
	"fmt"
	"iter"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Signals, as the label eviction_signal of kubelet_evictions has them.
const (
	SignalEmptyDir  = "emptydirfs.limit"
	SignalPod       = "ephemeralpodfs.limit"
	SignalContainer = "ephemeralcontainerfs.limit"
)

// GracePeriodSeconds is what the containers of such a pod get to end.
const GracePeriodSeconds = 1

// Excess is why a pod is to be evicted.
type Excess struct {
	Signal string
	// Message is that of the pod's status and of the event.
	Message string
	// EmptyDir or Container name what the limit is of; neither is named if it is the pod's.
	EmptyDir, Container string
	// UsedBytes is what is used of it.
	UsedBytes int64
}

// Limited says whether the pod has a limit that Check compares with figures.
func Limited(p *v1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil {
			return true
		}
	}
	_, limited := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return limited
}

// Rules are what decides besides the pod and its figures.
type Rules struct {
	// DedicatedImageFs: the runtime has the layers of containers on another file system, which is not the pods'.
	DedicatedImageFs bool
	// Oldest is when a figure may have been measured at the earliest. The zero time admits all.
	Oldest time.Time
}

// Check returns the first excess of the pod.
func (r Rules) Check(p *v1.Pod, figures *statsapi.PodStats) (Excess, bool) {
	if e, found := r.emptyDir(p, figures); found {
		return e, true
	}
	if e, found := r.pod(p, figures); found {
		return e, true
	}
	return r.container(p, figures)
}

// used returns what a figure says is taken; nil is unknown.
func (r Rules) used(figure *statsapi.FsStats) *resource.Quantity {
	if figure == nil || figure.UsedBytes == nil || figure.Time.Time.Before(r.Oldest) {
		return nil
	}
	return resource.NewQuantity(int64(*figure.UsedBytes), resource.BinarySI)
}

func (r Rules) emptyDir(p *v1.Pod, figures *statsapi.PodStats) (Excess, bool) {
	used := map[string]*resource.Quantity{}
	for _, v := range figures.VolumeStats {
		used[v.Name] = r.used(&v.FsStats)
	}
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir == nil {
			continue
		}
		limit, taken := v.EmptyDir.SizeLimit, used[v.Name]
		if limit != nil && limit.Sign() > 0 && taken != nil && taken.Cmp(*limit) > 0 {
			return Excess{
				Signal: SignalEmptyDir, EmptyDir: v.Name, UsedBytes: taken.Value(),
				Message: fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String()),
			}, true
		}
	}
	return Excess{}, false
}

func (r Rules) pod(p *v1.Pod, figures *statsapi.PodStats) (Excess, bool) {
	limit, limited := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	taken := r.used(figures.EphemeralStorage)
	if !limited || taken == nil || taken.Cmp(limit) <= 0 {
		return Excess{}, false
	}
	return Excess{
		Signal: SignalPod, UsedBytes: taken.Value(),
		Message: fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
			limit.String()),
	}, true
}

func (r Rules) container(p *v1.Pod, figures *statsapi.PodStats) (Excess, bool) {
	limits := map[string]*resource.Quantity{}
	for c := range lasting(p) {
		if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() {
			limits[c.Name] = limit
		}
	}
	for _, c := range figures.Containers {
		limit, limited := limits[c.Name]
		if !limited {
			continue
		}
		var taken resource.Quantity
		if logs := r.used(c.Logs); logs != nil {
			taken.Add(*logs)
		}
		if layer := r.used(c.Rootfs); layer != nil && !r.DedicatedImageFs {
			taken.Add(*layer)
		}
		if taken.Cmp(*limit) > 0 {
			return Excess{
				Signal: SignalContainer, Container: c.Name, UsedBytes: taken.Value(),
				Message: fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String()),
			}, true
		}
	}
	return Excess{}, false
}

// lasting are the containers that run as long as the pod does: not init containers, unless they are sidecars.
func lasting(p *v1.Pod) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for i := range p.Spec.Containers {
			if !yield(&p.Spec.Containers[i]) {
				return
			}
		}
		for i := range p.Spec.InitContainers {
			c := &p.Spec.InitContainers[i]
			if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways && !yield(c) {
				return
			}
		}
	}
}
