package podresources

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
)

// scene is a node with pods and devices.
type scene struct {
	known chan struct{}
	pods  []*corev1.Pod
}

func (s *scene) Known() <-chan struct{} { return s.known }
func (s *scene) List() []*corev1.Pod    { return s.pods }

func devices(resource string, list ...*resourcesv1.Device) *resourcesv1.ContainerResources_Devices {
	return &resourcesv1.ContainerResources_Devices{Resource: resource, Devices: list}
}

func (s *scene) Pod(uid types.UID) *resourcesv1.PodResources {
	if uid != "busy" {
		return nil
	}
	return &resourcesv1.PodResources{Containers: []*resourcesv1.ContainerResources{
		{Name: "first", Devices: []*resourcesv1.ContainerResources_Devices{devices("e/a", &resourcesv1.Device{Id: "1"})}},
		{Name: "sidecar", Devices: []*resourcesv1.ContainerResources_Devices{devices("e/b", &resourcesv1.Device{Id: "2"})}},
		{Name: "main", Devices: []*resourcesv1.ContainerResources_Devices{
			devices("e/a", &resourcesv1.Device{Id: "1", NumaNodes: []int64{0, 1}}, &resourcesv1.Device{Id: "3"}),
		}},
	}}
}

func (s *scene) Allocatable() []*resourcesv1.ContainerResources_Devices {
	return []*resourcesv1.ContainerResources_Devices{devices("e/a", &resourcesv1.Device{Id: "1"})}
}

func pod(name string, uid types.UID, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{
				{Name: "first"}, {Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
			},
			Containers: []corev1.Container{{Name: "main"}},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
}

func newScene() *scene {
	s := &scene{known: make(chan struct{})}
	s.pods = []*corev1.Pod{
		pod("web", "ended", corev1.PodFailed), pod("web", "busy", corev1.PodRunning), pod("job", "done", corev1.PodSucceeded),
	}
	close(s.known)
	return s
}

// same compares messages by their text, since the text of the wanted one is easy to read.
func same[M proto.Message](t *testing.T, got M, want string) {
	t.Helper()
	wanted := got.ProtoReflect().New().Interface()
	if err := prototext.Unmarshal([]byte(want), wanted); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, wanted) {
		t.Errorf("answer is %v, want %v", got, wanted)
	}
}

const busy = `name: "web" namespace: "ns"
	containers {name: "sidecar" devices {resource_name: "e/b" device_ids: "2"}}
	containers {name: "main"
		devices {resource_name: "e/a" device_ids: "1" topology {nodes {ID: 0}}}
		devices {resource_name: "e/a" device_ids: "1" topology {nodes {ID: 1}}}
		devices {resource_name: "e/a" device_ids: "3"}
	}`

func TestAnswers(t *testing.T) {
	s, registry := newScene(), prometheus.NewRegistry()
	metrics := NewMetrics(registry)
	v1, alpha := NewV1(s, s, metrics), NewV1alpha1(s, s, metrics)
	list, err := v1.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	same(t, list, "pod_resources {"+busy+"}")
	one, err := v1.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "web"})
	if err != nil {
		t.Fatal(err)
	}
	same(t, one, "pod_resources {"+busy+"}")
	allocatable, err := v1.GetAllocatableResources(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	same(t, allocatable, `devices {resource_name: "e/a" device_ids: "1"}`)
	old, err := alpha.List(t.Context(), &podresourcesv1alpha1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, old, `pod_resources {name: "job" namespace: "ns" containers {name: "main"}}
		pod_resources {name: "web" namespace: "ns" containers {name: "main"
			devices {resource_name: "e/a" device_ids: "1"} devices {resource_name: "e/a" device_ids: "1"}
			devices {resource_name: "e/a" device_ids: "3"}}}
		pod_resources {name: "web" namespace: "ns" containers {name: "main"}}`)
	_, err = v1.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "none"})
	if status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "pod none in namespace ns not found") {
		t.Errorf("error is %v", err)
	}
	want := `
# HELP kubelet_pod_resources_endpoint_errors_get Calls of Get of the podresources API that failed. By version of the API.
# TYPE kubelet_pod_resources_endpoint_errors_get counter
kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 1
# HELP kubelet_pod_resources_endpoint_requests_get Calls of Get of the podresources API. By version of the API.
# TYPE kubelet_pod_resources_endpoint_requests_get counter
kubelet_pod_resources_endpoint_requests_get{server_api_version="v1"} 2
# HELP kubelet_pod_resources_endpoint_requests_get_allocatable Calls of GetAllocatableResources of the podresources API. By version of the API.
# TYPE kubelet_pod_resources_endpoint_requests_get_allocatable counter
kubelet_pod_resources_endpoint_requests_get_allocatable{server_api_version="v1"} 1
# HELP kubelet_pod_resources_endpoint_requests_list Calls of List of the podresources API. By version of the API.
# TYPE kubelet_pod_resources_endpoint_requests_list counter
kubelet_pod_resources_endpoint_requests_list{server_api_version="v1"} 1
# HELP kubelet_pod_resources_endpoint_requests_total Calls of the podresources API. By version of the API.
# TYPE kubelet_pod_resources_endpoint_requests_total counter
kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"} 4
kubelet_pod_resources_endpoint_requests_total{server_api_version="v1alpha1"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// The first call may have started the process, before which no pod is known.
func TestACallWaitsForThePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.known = make(chan struct{})
		v1 := NewV1(s, s, NewMetrics(prometheus.NewRegistry()))
		if _, err := v1.List(t.Context(), nil); status.Code(err) != codes.Unavailable {
			t.Errorf("without pods: %v", err)
		}
		answered := make(chan error, 1)
		go func() {
			_, err := v1.List(t.Context(), nil)
			answered <- err
		}()
		synctest.Wait()
		close(s.known)
		if err := <-answered; err != nil {
			t.Error(err)
		}
	})
}
