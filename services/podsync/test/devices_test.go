package test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// resources is one that a test plays.
type resources struct {
	resourcesv1.UnimplementedResourcesServiceServer
	stop func()

	mu       sync.Mutex
	answer   *resourcesv1.AllocateResponse // nil hangs
	asked    map[string]int                // by the pod's name
	requests []*resourcesv1.AllocateRequest
	prepared int
	// registered are the plugins that came, and deregistered is how many went.
	registered   []*resourcesv1.RegisterPluginRequest
	deregistered int
}

func (n *node) resources(answer *resourcesv1.AllocateResponse) *resources {
	n.t.Helper()
	r := &resources{answer: answer, asked: map[string]int{}}
	cfg := n.Service()
	r.stop = n.Serve(cfg.Socket(role.Resources), func(s *grpc.Server) {
		resourcesv1.RegisterResourcesServiceServer(s, r)
	})
	return r
}

func (r *resources) Allocate(ctx context.Context,
	request *resourcesv1.AllocateRequest) (*resourcesv1.AllocateResponse, error) {
	p := &v1.Pod{}
	if err := p.Unmarshal(request.GetPod()); err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.asked[strings.TrimSuffix(p.Name, "-"+bustest.NodeName)]++
	r.requests = append(r.requests, request)
	answer := r.answer
	r.mu.Unlock()
	if answer == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return answer, nil
}

func (r *resources) PrepareContainer(context.Context,
	*resourcesv1.PrepareContainerRequest) (*resourcesv1.PrepareContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prepared++
	return &resourcesv1.PrepareContainerResponse{}, nil
}

func (r *resources) times(pod string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[pod]
}

func grant(container string) *resourcesv1.PodResources {
	return &resourcesv1.PodResources{Containers: []*resourcesv1.ContainerResources{{
		Name: container, Prepare: true,
		Devices: []*resourcesv1.ContainerResources_Devices{{Resource: "example.com/gpu", Devices: []*resourcesv1.Device{
			{Id: "gpu-0", Health: resourcesv1.Health_HEALTH_HEALTHY},
		}}},
		Env: map[string]string{"GPU": "gpu-0"},
		DeviceNodes: []*resourcesv1.ContainerResources_DeviceNode{
			{HostPath: "/dev/null", ContainerPath: "/dev/gpu0", Permissions: "rw"},
		},
		CdiDevices: []string{"example.com/gpu=gpu-0"},
	}}}
}

func granted(container string) *resourcesv1.AllocateResponse {
	return &resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Granted{Granted: grant(container)}}
}

// putGPU writes the manifest of a pod with a device.
func (n *node) putGPU(name string) {
	n.t.Helper()
	n.write(name+".yaml", strings.Replace(manifest(name), "image: \""+image+"\"",
		"image: \""+image+"\", resources: {limits: {example.com/gpu: 1}}", 1))
}

// status is what podsync reports of a pod.
func (r *reader) status(name string) *v1.PodStatus {
	for key, m := range r.pods.All() {
		p := &v1.Pod{}
		if p.Unmarshal(m.GetPod()) != nil || p.Name != name+"-"+bustest.NodeName {
			continue
		}
		s := &v1.PodStatus{}
		if found, ok := r.statuses.Get(key); ok && s.Unmarshal(found.GetStatus()) == nil {
			return s
		}
	}
	return &v1.PodStatus{}
}

func waits(s *v1.PodStatus) string {
	if len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Waiting != nil {
		return s.ContainerStatuses[0].State.Waiting.Message
	}
	return ""
}

// A pod with a device waits while resources is away, hangs or lets it wait, and no other pod does. Then it runs with
// its device.
func TestAPodWaitsForItsDevice(t *testing.T) {
	n := newNode(t)
	reads := n.reads()
	n.start()
	n.putGPU("gpu")
	n.put("plain")
	n.runs("plain")
	shows := func(what string) {
		t.Helper()
		proctest.Await(t, 2*soon, "the pod shows: "+what, func() bool {
			return strings.Contains(waits(reads.status("gpu")), what)
		})
		if len(n.running("gpu")) > 0 {
			t.Fatal("a pod without its device runs")
		}
	}
	shows("which hands out example.com/gpu, does not answer")

	r := n.resources(nil)
	shows("waits for the answer")
	n.put("another")
	n.runs("another")
	r.stop()

	r = n.resources(&resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Wait_{
		Wait: &resourcesv1.AllocateResponse_Wait{Resource: "example.com/gpu", Message: "its plugin is away"},
	}})
	shows("its plugin is away")
	r.mu.Lock()
	r.answer = granted("c-gpu")
	r.mu.Unlock()
	id := n.runs("gpu")
	if r.times("plain")+r.times("another") > 0 || r.prepared != 1 {
		t.Errorf("asked %v, prepared %d", r.asked, r.prepared)
	}
	var config *runtimeapi.ContainerConfig
	for _, call := range n.runtime.Calls("CreateContainer") {
		request, ok := call.Request.(*runtimeapi.CreateContainerRequest)
		if ok && request.GetConfig().GetMetadata().GetName() == "c-gpu" {
			config = request.GetConfig()
		}
	}
	if len(config.GetDevices()) != 1 || config.GetDevices()[0].GetContainerPath() != "/dev/gpu0" ||
		len(config.GetCDIDevices()) != 1 || len(config.GetEnvs()) == 0 || config.GetEnvs()[0].GetKey() != "GPU" {
		t.Errorf("container %s is configured with %v", id, config)
	}
	proctest.Await(t, soon, "the status shows the device", func() bool {
		s := reads.status("gpu")
		return len(s.ContainerStatuses) == 1 && len(s.ContainerStatuses[0].AllocatedResourcesStatus) == 1
	})
}

func TestAPodIsRejectedForItsDevice(t *testing.T) {
	n := newNode(t)
	reads := n.reads()
	n.resources(&resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Rejection_{
		Rejection: &resourcesv1.AllocateResponse_Rejection{Reason: "UnexpectedAdmissionError", Message: "no devices"},
	}})
	n.start()
	n.putGPU("gpu")
	proctest.Await(t, soon, "the pod is rejected", func() bool {
		s := reads.status("gpu")
		return s.Phase == v1.PodFailed && s.Reason == "UnexpectedAdmissionError"
	})
}

// A podsync that starts again lets the pod run without a question. It starts its container when resources has said what
// that has: the bus, which has it too, could forge it. The status follows the device's health on the bus.
func TestADeviceOutlivesPodsync(t *testing.T) {
	n := newNode(t)
	reads := n.reads()
	var writer *bus.Writer
	n.Client(role.Resources, func(c *bus.Client) { writer = c.Own(subject.Resources) })
	r := n.resources(granted("c-gpu"))
	podsync := n.start()
	n.putGPU("gpu")
	first := n.runs("gpu")
	uid := ""
	for key := range reads.pods.All() {
		uid = key
	}
	put := func(h resourcesv1.Health) {
		m := grant("c-gpu")
		m.Containers[0].Prepare = false
		m.Containers[0].Devices[0].Devices[0].Health = h
		writer.Put(subject.PodKey(uid), m)
	}
	put(resourcesv1.Health_HEALTH_HEALTHY)
	r.stop()
	podsync.Kill()
	n.start()
	if err := n.runtime.ExitContainer(first, 1); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, soon, "the container waits for resources", func() bool {
		s := reads.status("gpu")
		return len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Waiting != nil &&
			strings.Contains(s.ContainerStatuses[0].State.Waiting.Message, "resources")
	})
	if ids := n.running("gpu"); len(ids) != 0 {
		t.Errorf("%q run without the word of resources", ids)
	}
	r = n.resources(granted("c-gpu"))
	proctest.Await(t, soon, "the container runs again", func() bool {
		ids := n.running("gpu")
		return len(ids) == 1 && ids[0] != first
	})
	if asked := r.times("gpu"); asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
	put(resourcesv1.Health_HEALTH_UNHEALTHY)
	proctest.Await(t, soon, "the status shows that the device is unhealthy", func() bool {
		s := reads.status("gpu")
		if len(s.ContainerStatuses) != 1 || len(s.ContainerStatuses[0].AllocatedResourcesStatus) != 1 {
			return false
		}
		return s.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources[0].Health == v1.ResourceHealthStatusUnhealthy
	})
}
