// Package podresources serves the kubelet's podresources API, from which programs of the node such as exporters of
// metrics read which devices each container has.
//
// It serves v1 and v1alpha1 to root, at most 100 calls a second as the kubelet. CPUs, memory and dynamic resources are
// empty, because the node grants none of them to a container alone.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
package podresources

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
)

const (
	// patience is how long a call waits for the node's pods to be known: the call may have started this process.
	patience = 10 * time.Second
)

// Pods are the node's pods.
type Pods interface {
	// Known is closed when all pods are known.
	Known() <-chan struct{}
	// List returns all pods with their status. They are shared.
	List() []*v1.Pod
}

// Devices are what pods were granted; see devices.Manager.
type Devices interface {
	Pod(uid types.UID) *resourcesv1.PodResources
	Allocatable() []*resourcesv1.ContainerResources_Devices
}

// node is what both versions of the API read.
type node struct {
	pods    Pods
	devices Devices
	metrics *Metrics
}

// list returns the pods in the order of their names, once all are known.
func (n *node) list(ctx context.Context) ([]*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-n.pods.Known():
	case <-ctx.Done():
		return nil, status.Error(codes.Unavailable, "the pods of the node are not known yet: the bus or podsync is away")
	}
	pods := n.pods.List()
	slices.SortFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods, nil
}

// isActive reports whether something of the pod may run, now or later.
func isActive(p *v1.Pod) bool {
	return p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed
}

// granted returns the devices of each container of a pod.
func (n *node) granted(uid types.UID) map[string][]*resourcesv1.ContainerResources_Devices {
	containers := n.devices.Pod(uid).GetContainers()
	all := make(map[string][]*resourcesv1.ContainerResources_Devices, len(containers))
	for _, c := range containers {
		all[c.GetName()] = c.GetDevices()
	}
	return all
}
