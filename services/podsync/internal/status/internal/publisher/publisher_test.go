package publisher

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podtrace"
	"github.com/microlet/microlet/services/internal/tracing/spantest"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// bucket is a writer that keeps what is put.
type bucket struct {
	values   map[string]proto.Message
	complete bool
	// traceparent is of the last put.
	traceparent string
}

func (b *bucket) Put(key string, m proto.Message) { b.values[key] = m }
func (b *bucket) PutTraced(key string, m proto.Message, traceparent string) {
	b.Put(key, m)
	b.traceparent = traceparent
}
func (b *bucket) Delete(key string) { delete(b.values, key) }
func (b *bucket) Complete()         { b.complete = true }

func newBucket() *bucket { return &bucket{values: map[string]proto.Message{}} }

func TestReadersGetThePodAndTheNewestIncarnation(t *testing.T) {
	pods, statuses, node := newBucket(), newBucket(), newBucket()
	p := New(pods, statuses, node, nil, slog.New(slog.DiscardHandler))
	api := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u1"}}
	p.Pod(api, api, podsyncv1.PodSource_POD_SOURCE_API, true)
	reported := pods.values["u1"].(*podsyncv1.Pod)
	var read v1.Pod
	if err := read.Unmarshal(reported.GetPod()); err != nil || read.Name != "a" || !reported.GetTerminating() {
		t.Fatalf("%+v, %v", reported, err)
	}

	cpu := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}
	desired := &v1.Pod{Spec: v1.PodSpec{
		Resources:      &cpu,
		InitContainers: []v1.Container{{Name: "i", Image: "image:1", Resources: cpu}},
		Containers:     []v1.Container{{Name: "c", Image: "image:1", Resources: cpu}},
	}}
	p.Pod(api, desired, podsyncv1.PodSource_POD_SOURCE_API, true)
	var asked v1.PodSpec
	if err := asked.Unmarshal(pods.values["u1"].(*podsyncv1.Pod).GetDesired()); err != nil {
		t.Fatal(err)
	}
	if len(reported.GetDesired()) > 0 {
		t.Errorf("a pod that has what it asks for asks for %x", reported.GetDesired())
	}
	if diff := cmp.Diff(v1.PodSpec{
		Resources:      &cpu,
		InitContainers: []v1.Container{{Name: "i", Resources: cpu}},
		Containers:     []v1.Container{{Name: "c", Resources: cpu}},
	}, asked); diff != "" {
		t.Errorf("what it asks for:\n%s", diff)
	}

	started := time.Unix(1_700_000_000, 0)
	p.Status("u1", &pod.State{
		Sandboxes: []pod.Sandbox{{ID: "new"}, {ID: "old"}},
		Containers: []pod.Container{
			{Name: "c", ID: "2", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Started: started, RestartCount: 1},
			{Name: "c", ID: "1", State: runtimeapi.ContainerState_CONTAINER_EXITED},
		},
	}, &v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: "192.0.2.7"}}})
	status := statuses.values["u1"].(*podsyncv1.PodStatus)
	if status.GetSandboxId() != "new" || !slices.Equal(status.GetPodIps(), []string{"192.0.2.7"}) ||
		len(status.GetContainers()) != 1 {
		t.Fatalf("%+v", status)
	}
	c := status.GetContainers()[0]
	if c.GetId() != "2" || c.GetState() != podsyncv1.ContainerState_CONTAINER_STATE_RUNNING ||
		!c.GetStarted().AsTime().Equal(started) || c.GetRestartCount() != 1 {
		t.Fatalf("%+v", c)
	}

	p.Forget("u1")
	if len(pods.values)+len(statuses.values) != 0 {
		t.Fatalf("left %v and %v", pods.values, statuses.values)
	}
	if p.PodsComplete(); !pods.complete || statuses.complete || node.complete {
		t.Error("with the pods all reported, more than the pods was called complete")
	}
	if p.StatusesComplete(); !statuses.complete || node.complete {
		t.Error("with the statuses all reported, not just they were called complete")
	}
}

// TestAStatusIsInThePodsTrace, so that the prober continues it.
func TestAStatusIsInThePodsTrace(t *testing.T) {
	statuses, traces := newBucket(), podtrace.New(spantest.New(t).Tracer)
	p := New(newBucket(), statuses, newBucket(), traces, slog.New(slog.DiscardHandler))
	_, span := traces.Begin(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}}, "syncPod")
	defer span.End(nil)
	p.Status("u1", &pod.State{}, &v1.PodStatus{})
	if want := traces.Of("u1").String(); want == "" || statuses.traceparent != want {
		t.Errorf("it is put in %q, want %q", statuses.traceparent, want)
	}
	p.Status("u2", &pod.State{}, &v1.PodStatus{})
	if statuses.traceparent != "" {
		t.Errorf("a pod of no trace is in %q", statuses.traceparent)
	}
}

// TestStatusesOfPodsThatHaveEndedTakeLittleRoom: there may be thousands of them.
func TestStatusesOfPodsThatHaveEndedTakeLittleRoom(t *testing.T) {
	statuses := newBucket()
	p := New(newBucket(), statuses, newBucket(), nil, slog.New(slog.DiscardHandler))
	status := &v1.PodStatus{Phase: v1.PodRunning, Reason: "r"}
	state := &pod.State{}
	for i := range 10_000 {
		name := fmt.Sprint("container-", i)
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{Name: name})
		state.Containers = append(state.Containers, pod.Container{Name: name, ID: name})
	}
	for phase, want := range map[v1.PodPhase]int{v1.PodRunning: 10_000, v1.PodFailed: 0} {
		status.Phase = phase
		p.Status("u", state, status)
		got := statuses.values["u"].(*podsyncv1.PodStatus)
		var read v1.PodStatus
		if err := read.Unmarshal(got.GetStatus()); err != nil || read.Phase != phase || read.Reason != "r" ||
			len(read.ContainerStatuses) != want || len(got.GetContainers()) != want {
			t.Errorf("%s: %d containers and the phase %s, %v", phase, len(got.GetContainers()), read.Phase, err)
		}
	}
}
