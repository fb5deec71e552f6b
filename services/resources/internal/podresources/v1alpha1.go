package podresources

import (
	"context"

	api "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// V1alpha1 implements version v1alpha1 of the API.
type V1alpha1 struct {
	api.UnimplementedPodResourcesListerServer
	node
}

// NewV1alpha1 returns a server of version v1alpha1.
func NewV1alpha1(p Pods, d Devices, m *Metrics) *V1alpha1 {
	return &V1alpha1{node: node{pods: p, devices: d, metrics: m}}
}

// List returns all pods, without their init containers. As with the kubelet, this version's pods need not be active.
func (s *V1alpha1) List(ctx context.Context, _ *api.ListPodResourcesRequest) (_ *api.ListPodResourcesResponse,
	err error) {
	defer s.metrics.count(total, versionV1alpha1, &err)
	pods, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	answer := &api.ListPodResourcesResponse{}
	for _, p := range pods {
		granted := s.granted(p.UID)
		out := &api.PodResources{Name: p.Name, Namespace: p.Namespace}
		for i := range p.Spec.Containers {
			name := p.Spec.Containers[i].Name
			c := &api.ContainerResources{Name: name}
			for _, d := range devicesOf(granted[name]) {
				c.Devices = append(c.Devices, &api.ContainerDevices{
					ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds(),
				})
			}
			out.Containers = append(out.Containers, c)
		}
		answer.PodResources = append(answer.PodResources, out)
	}
	return answer, nil
}
