package grants

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
)

// view is a part of the bus.
type view[M any] struct {
	items  map[string]M
	synced bool
}

func (v view[M]) Get(key string) (M, bool) { m, ok := v.items[key]; return m, ok }
func (v view[M]) All() map[string]M        { return v.items }
func (v view[M]) Synced() bool             { return v.synced }

// world is what grants have around them: resources, the bus and the workers.
type world struct {
	*Grants
	synced chan struct{}
	woken  []types.UID
	peer   *peer
}

// peer is resources.
type peer struct {
	resourcesv1.UnimplementedResourcesServiceServer

	mu       sync.Mutex
	answer   func(context.Context) (*resourcesv1.AllocateResponse, error)
	request  *resourcesv1.AllocateRequest
	prepared error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	w := &world{synced: make(chan struct{}), peer: &peer{}}
	s := grpc.NewServer()
	resourcesv1.RegisterResourcesServiceServer(s, w.peer)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	conn, err := grpc.NewClient("passthrough:///resources", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); s.Stop(); serving.Wait() })
	w.Grants = newGrants(conn, w, slog.New(slog.DiscardHandler))
	w.metrics = newMetrics(prometheus.NewRegistry())
	w.node, w.pods = view[*resourcesv1.NodeResources]{}, view[*resourcesv1.PodResources]{}
	close(w.synced)
	return w
}

func (w *world) Wake(uid types.UID, _ string) { w.woken = append(w.woken, uid) }
func (*world) Known(uid types.UID) bool       { return uid == "a" }
func (w *world) Synced() <-chan struct{}      { return w.synced }

func (p *peer) Allocate(ctx context.Context, r *resourcesv1.AllocateRequest) (*resourcesv1.AllocateResponse, error) {
	p.mu.Lock()
	p.request = r
	answer := p.answer
	p.mu.Unlock()
	return answer(ctx)
}

func (p *peer) PrepareContainer(context.Context,
	*resourcesv1.PrepareContainerRequest) (*resourcesv1.PrepareContainerResponse, error) {
	return &resourcesv1.PrepareContainerResponse{}, p.prepared
}

func (w *world) answers(r *resourcesv1.AllocateResponse, err error) {
	w.peer.answer = func(context.Context) (*resourcesv1.AllocateResponse, error) { return r, err }
}

func (w *world) has(names ...string) {
	m := &resourcesv1.NodeResources{}
	for _, name := range names {
		m.Resources = append(m.Resources, &resourcesv1.NodeResources_Resource{Name: name, Capacity: 2, Allocatable: 1})
	}
	w.node = view[*resourcesv1.NodeResources]{items: map[string]*resourcesv1.NodeResources{"resources": m}}
}

func (w *world) bucket(synced bool, of map[string]*resourcesv1.PodResources) {
	w.pods = view[*resourcesv1.PodResources]{items: of, synced: synced}
}

const gpu = "example.com/gpu"

func podOf(limits ...string) *v1.Pod {
	list := v1.ResourceList{}
	for _, name := range limits {
		list[v1.ResourceName(name)] = resource.MustParse("1")
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "a"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Limits: list}}},
	}}
}

func granted(resources ...string) *resourcesv1.PodResources {
	c := &resourcesv1.ContainerResources{Name: "c", Prepare: true, Env: map[string]string{"GPU": "0"}}
	for _, name := range resources {
		c.Devices = append(c.Devices, &resourcesv1.ContainerResources_Devices{Resource: name,
			Devices: []*resourcesv1.Device{{Id: "0", Health: resourcesv1.Health_HEALTH_HEALTHY}}})
	}
	return &resourcesv1.PodResources{Containers: []*resourcesv1.ContainerResources{c}}
}

func grants(p *resourcesv1.PodResources) *resourcesv1.AllocateResponse {
	return &resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Granted{Granted: p}}
}

func placed(uids ...types.UID) admission.Placed {
	return admission.Placed{UIDs: uids, At: time.Unix(1_700_000_000, 0)}
}

func TestWhichPodsAreAskedFor(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		limits []string
		node   []string // nil: resources has said nothing
		want   bool
	}{
		{[]string{"cpu", "hugepages-2Mi"}, nil, false},
		{[]string{"cpu", gpu}, nil, true},
		{[]string{gpu}, []string{gpu}, true},
		{[]string{"example.com/licence"}, []string{gpu}, false},
		{[]string{"example.com/licence", gpu}, []string{gpu}, true},
	} {
		w.node = view[*resourcesv1.NodeResources]{}
		if c.node != nil {
			w.has(c.node...)
		}
		if got := w.Needs(podOf(c.limits...)); got != c.want {
			t.Errorf("limits %v on a node with %v: asked for %v", c.limits, c.node, got)
		}
	}
	p := podOf(gpu)
	p.Spec.Containers[0].Resources.Limits[gpu] = resource.MustParse("0")
	if w.has(gpu); w.Needs(p) {
		t.Error("a container with none of a resource is asked for")
	}
}

func TestAnswers(t *testing.T) {
	w := newWorld(t)
	w.has(gpu)
	p := podOf(gpu)
	w.answers(grants(granted(gpu)), nil)
	v, err := w.Grants.Allocate(t.Context(), p, placed("a", "b"), true)
	if err != nil || !v.Admitted() || !w.peer.request.GetRunning() || len(w.peer.request.GetPlacedPodUids()) != 2 ||
		w.peer.request.GetPlacedAt().AsTime().Unix() != 1_700_000_000 {
		t.Fatalf("%v %v after %v", v, err, w.peer.request)
	}
	if w.Lacks(p, &p.Spec.Containers[0]) {
		t.Error("the answer is not kept")
	}
	w.answers(&resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Rejection_{
		Rejection: &resourcesv1.AllocateResponse_Rejection{Message: strings.Repeat("é", 4096)},
	}}, nil)
	if v, err = w.Grants.Allocate(t.Context(), p, placed(), false); err != nil || v.Reason != "UnexpectedAdmissionError" ||
		len(v.Message) > maxText+4 {
		t.Errorf("rejected: %q, %d bytes, %v", v.Reason, len(v.Message), err)
	}
	for _, c := range []struct {
		answer *resourcesv1.AllocateResponse
		err    error
		want   string
	}{
		{&resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Wait_{
			Wait: &resourcesv1.AllocateResponse_Wait{Resource: gpu}}}, nil, "waits for the device plugin of " + gpu},
		{&resourcesv1.AllocateResponse{}, nil, "without a decision"},
		{nil, status.Error(codes.Unavailable, "no socket"), "hands out " + gpu + ", does not answer: it cannot be reached"},
		{nil, status.Error(codes.Internal, "disk full"), "disk full"},
	} {
		w.answers(c.answer, c.err)
		_, err := w.Grants.Allocate(t.Context(), p, placed(), false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	w.nodeChanged("resources")
	if len(w.woken) != 1 || w.woken[0] != "a" {
		t.Errorf("woken: %v", w.woken)
	}
	w.Forget("a")
	if !w.Lacks(p, &p.Spec.Containers[0]) {
		t.Error("a pod that is gone keeps its grant")
	}
}

func TestAnAnswerThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.peer.answer = func(ctx context.Context) (*resourcesv1.AllocateResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		began := time.Now()
		_, err := w.Grants.Allocate(t.Context(), podOf(gpu), placed(), false)
		if err == nil || !strings.Contains(err.Error(), "it took too long") || time.Since(began) != allocateTimeout {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// Before all sources of pods are known, what the bus shows as granted is not free.
func TestWhatOthersHoldBeforeTheyAreKnown(t *testing.T) {
	w := newWorld(t)
	w.synced = make(chan struct{})
	w.answers(grants(granted(gpu)), nil)
	if _, err := w.Grants.Allocate(t.Context(), podOf(gpu), placed("a"), false); err == nil || w.peer.request != nil {
		t.Errorf("asked %v although it is not known what others hold: %v", w.peer.request, err)
	}
	w.bucket(true, map[string]*resourcesv1.PodResources{"b": granted(gpu)})
	if _, err := w.Grants.Allocate(t.Context(), podOf(gpu), placed("a"), false); err != nil ||
		len(w.peer.request.GetPlacedPodUids()) != 2 {
		t.Errorf("placed %v, %v", w.peer.request.GetPlacedPodUids(), err)
	}
}

func TestWhatAContainerGets(t *testing.T) {
	w := newWorld(t)
	w.has(gpu)
	p := podOf(gpu)
	c := &p.Spec.Containers[0]
	if !w.Lacks(p, c) {
		t.Error("without an answer, it is not asked for")
	}
	w.granted("a", granted(gpu))
	r, err := w.Container(t.Context(), p, c)
	if err != nil || r.GetEnv()["GPU"] != "0" || w.Lacks(p, c) {
		t.Errorf("what was granted is %v, %v", r, err)
	}
	w.peer.prepared = status.Error(codes.FailedPrecondition, "device plugin PreStartContainer rpc failed with err: reset")
	if _, err = w.Container(t.Context(), p, c); err == nil ||
		err.Error() != "device plugin PreStartContainer rpc failed with err: reset" {
		t.Errorf("not prepared: %v", err)
	}
	w.peer.prepared = nil
	const other = "example.com/other"
	for _, of := range []*resourcesv1.PodResources{granted(), granted(other), granted(gpu, other)} {
		w.granted("a", of)
		if r, err := w.Container(t.Context(), p, c); err == nil {
			t.Errorf("a container that asks for %s gets %v", gpu, r)
		}
	}
	plain := podOf("cpu")
	w.granted("a", granted(gpu))
	if r, err := w.Container(t.Context(), plain, &plain.Spec.Containers[0]); r != nil || err != nil {
		t.Errorf("a container that asks for nothing gets %v, %v", r, err)
	}
	// The plugin of a resource has come since.
	w.granted("a", &resourcesv1.PodResources{})
	if !w.Lacks(p, c) {
		t.Error("a container without a device that there is now is not asked for")
	}
}

// A grant has mounts and devices of the host. The bus, which could forge it, is no process that may choose them.
func TestAContainerGetsNothingThatOnlyTheBusHas(t *testing.T) {
	w := newWorld(t)
	w.has(gpu)
	p := podOf(gpu)
	c := &p.Spec.Containers[0]
	forged := granted(gpu)
	forged.Containers[0].Mounts = []*resourcesv1.ContainerResources_Mount{{HostPath: "/", ContainerPath: "/host"}}
	w.bucket(true, map[string]*resourcesv1.PodResources{"a": forged})
	if !w.Lacks(p, c) {
		t.Error("resources is not asked for what the bus has")
	}
	if r, err := w.Container(t.Context(), p, c); r != nil || err != nil {
		t.Errorf("the container gets %v, %v", r, err)
	}
}

func TestStatuses(t *testing.T) {
	w := newWorld(t)
	if _, known := w.Statuses("a"); known {
		t.Error("known without a word")
	}
	w.granted("a", granted(gpu))
	sick := granted(gpu)
	sick.Containers[0].Devices[0].Devices = []*resourcesv1.Device{
		{Id: "0", Health: resourcesv1.Health_HEALTH_UNHEALTHY}, {Id: "0"},
		{Id: "1", Health: resourcesv1.Health_HEALTH_UNKNOWN},
	}
	w.bucket(true, map[string]*resourcesv1.PodResources{"a": sick})
	got, known := w.Statuses("a")
	want := []v1.ResourceHealth{
		{ResourceID: "0", Health: v1.ResourceHealthStatusUnhealthy},
		{ResourceID: "1", Health: v1.ResourceHealthStatusUnknown},
	}
	if !known || len(got["c"]) != 1 || len(got["c"][0].Resources) != 2 || got["c"][0].Resources[0] != want[0] ||
		got["c"][0].Resources[1] != want[1] {
		t.Errorf("%v, want %v", got, want)
	}
	w.podChanged("a")
	w.podChanged("gone")
	if len(w.woken) != 1 {
		t.Errorf("woken: %v", w.woken)
	}
}

func TestExtendedResources(t *testing.T) {
	w := newWorld(t)
	if _, known := w.Extended(); known {
		t.Error("known without a word")
	}
	w.has(gpu, "cpu", "kubernetes.io/x")
	got, known := w.Extended()
	if q := got[gpu]; !known || len(got) != 1 || q.Value() != 1 {
		t.Errorf("%v, %v", got, known)
	}
}
