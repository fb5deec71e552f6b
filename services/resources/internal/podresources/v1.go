package podresources

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
)

// V1 implements version v1 of the API.
type V1 struct {
	api.UnimplementedPodResourcesListerServer
	node
}

// NewV1 returns a server of version v1.
func NewV1(p Pods, d Devices, m *Metrics) *V1 {
	return &V1{node: node{pods: p, devices: d, metrics: m}}
}

// List returns the active pods.
func (s *V1) List(ctx context.Context, _ *api.ListPodResourcesRequest) (_ *api.ListPodResourcesResponse, err error) {
	defer s.metrics.count(list, versionV1, &err)
	pods, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	answer := &api.ListPodResourcesResponse{}
	for _, p := range pods {
		if isActive(p) {
			answer.PodResources = append(answer.PodResources, s.resourcesOf(p))
		}
	}
	return answer, nil
}

// Get returns a pod, an active one if there are several of the name.
func (s *V1) Get(ctx context.Context, r *api.GetPodResourcesRequest) (_ *api.GetPodResourcesResponse, err error) {
	defer s.metrics.count(get, versionV1, &err)
	pods, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	var found *corev1.Pod
	for _, p := range pods {
		if p.Namespace == r.GetPodNamespace() && p.Name == r.GetPodName() && (found == nil || isActive(p)) {
			found = p
		}
	}
	if found == nil { // with the kubelet's code and words
		return nil, status.Errorf(codes.Unknown, "pod %s in namespace %s not found", r.GetPodName(), r.GetPodNamespace())
	}
	return &api.GetPodResourcesResponse{PodResources: s.resourcesOf(found)}, nil
}

// GetAllocatableResources returns the healthy devices, whether they are granted or not.
func (s *V1) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (
	_ *api.AllocatableResourcesResponse, err error) {
	defer s.metrics.count(getAllocatable, versionV1, &err)
	return &api.AllocatableResourcesResponse{Devices: devicesOf(s.devices.Allocatable())}, nil
}

// resourcesOf is a pod with its sidecars and containers. Other init containers end before, and have nothing then.
func (s *V1) resourcesOf(p *corev1.Pod) *api.PodResources {
	granted := s.granted(p.UID)
	out := &api.PodResources{Name: p.Name, Namespace: p.Namespace}
	add := func(name string) {
		out.Containers = append(out.Containers, &api.ContainerResources{Name: name, Devices: devicesOf(granted[name])})
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c.Name)
		}
	}
	for i := range p.Spec.Containers {
		add(p.Spec.Containers[i].Name)
	}
	return out
}

// devicesOf has an entry for each device and NUMA node, as the kubelet's answer.
func devicesOf(granted []*resourcesv1.ContainerResources_Devices) []*api.ContainerDevices {
	var all []*api.ContainerDevices
	for _, resource := range granted {
		for _, d := range resource.GetDevices() {
			entry := func(topology *api.TopologyInfo) {
				all = append(all, &api.ContainerDevices{
					ResourceName: resource.GetResource(), DeviceIds: []string{d.GetId()}, Topology: topology,
				})
			}
			if len(d.GetNumaNodes()) == 0 {
				entry(nil)
			}
			for _, node := range d.GetNumaNodes() {
				entry(&api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node}}})
			}
		}
	}
	return all
}
