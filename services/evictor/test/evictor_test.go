// Package test runs evictor alone against a real bus, with a fake runtime and a fake podsync.
package test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	evictorv1 "github.com/microlet/microlet/proto/microlet/evictor/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/evictor"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// TestMain has the test's binary measure folders, since the children are of this binary.
func TestMain(m *testing.M) {
	if evictor.RunChild() {
		return
	}
	m.Run()
}

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// node is a real bus, a fake runtime behind the gateway's socket, podsync on the bus and on its socket, and evictor.
type node struct {
	*bustest.Node
	t              *testing.T
	cfg            evictor.Config
	pods, statuses *bus.Writer
	pressure       *bus.View[*evictorv1.Pressure]

	podsyncv1.UnimplementedEvictionServiceServer
	mu      sync.Mutex
	evicted []*podsyncv1.EvictRequest
	// slow keeps evicted pods running.
	slow bool
	// stopPodsync ends the peer.
	stopPodsync func()
}

func (n *node) Evict(_ context.Context, r *podsyncv1.EvictRequest) (*podsyncv1.EvictResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.evicted = append(n.evicted, r)
	if r.GetPodUid() == "critical" {
		return nil, status.Error(codes.FailedPrecondition, "the pod is critical")
	}
	if !n.slow {
		n.put(r.GetPodUid(), podsyncv1.ContainerState_CONTAINER_STATE_EXITED)
	}
	return &podsyncv1.EvictResponse{Stopping: n.slow}, nil
}

func (n *node) asked() (uids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.evicted {
		uids = append(uids, r.GetPodUid())
	}
	return uids
}

func newNode(t *testing.T, hard map[string]string) *node {
	t.Helper()
	n := &node{Node: bustest.New(t), t: t}
	n.cfg = evictor.Config{Service: n.Service()}
	kubelet := kubeletconfig.Default()
	kubelet.EvictionHard, kubelet.EnforceNodeAllocatable = hard, nil
	kubelet.EvictionPressureTransitionPeriod = metav1.Duration{Duration: time.Hour}
	n.cfg.Kubelet = &kubeletconfig.Config{Kubelet: kubelet, Node: kubeletconfig.NodeFlags{RootDir: t.TempDir()}}
	n.cfg.Period = time.Second
	runtime := fake.NewRuntime(time.Now)
	stop, err := runtime.Serve(n.cfg.Service.CRISocket(role.Evictor))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	n.stopPodsync = n.Serve(n.cfg.Service.Socket(role.Podsync),
		func(s *grpc.Server) { podsyncv1.RegisterEvictionServiceServer(s, n) })
	n.Client(role.Podsync, func(c *bus.Client) { n.pods, n.statuses = c.Own(subject.Pods), c.Own(subject.PodStatus) })
	n.Client(role.NodeStatus, func(c *bus.Client) {
		n.pressure = bus.Watch[evictorv1.Pressure](c, subject.Node, subject.NodePressure, nil)
	})
	return n
}

func (n *node) start() (stop func()) {
	return n.Run(func(ctx context.Context) error { return evictor.Run(ctx, n.cfg) })
}

// put puts a pod of one container as podsync does.
func (n *node) put(uid string, state podsyncv1.ContainerState) {
	body, err := (&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}).Marshal()
	if err != nil {
		n.t.Error(err)
	}
	n.pods.Put(subject.PodKey(uid), &podsyncv1.Pod{Pod: body})
	n.statuses.Put(subject.PodKey(uid),
		&podsyncv1.PodStatus{Containers: []*podsyncv1.Container{{Name: "c", Id: "x", State: state}}})
	n.pods.Complete()
	n.statuses.Complete()
}

func (n *node) state(condition string) evictorv1.Pressure_State {
	m, _ := n.pressure.Get(subject.NodePressure)
	for _, c := range m.GetConditions() {
		if c.GetType() == condition {
			return c.GetState()
		}
	}
	return evictorv1.Pressure_STATE_UNSPECIFIED
}

const running = podsyncv1.ContainerState_CONTAINER_STATE_RUNNING

// A node that has enough says so, and nothing is evicted.
func TestANodeWithoutPressure(t *testing.T) {
	n := newNode(t, map[string]string{"memory.available": "1Mi", "pid.available": "1", "nodefs.available": "1Mi"})
	n.start()
	for _, condition := range []string{"MemoryPressure", "DiskPressure", "PIDPressure"} {
		proctest.Await(t, patience, condition+" is none", func() bool {
			return n.state(condition) == evictorv1.Pressure_STATE_NONE
		})
	}
	if got := n.asked(); len(got) > 0 {
		t.Errorf("evicted %q", got)
	}
}

// The signals are those of this machine, stats is not there, and the pod has no cgroup: nothing is known of it.
func TestNoPodGoesOfWhichNothingIsKnown(t *testing.T) {
	n := newNode(t, map[string]string{"memory.available": "99.9%"})
	n.put("p", running)
	n.start()
	proctest.Await(t, patience, "memory pressure", func() bool {
		return n.state("MemoryPressure") == evictorv1.Pressure_STATE_PRESENT
	})
	time.Sleep(3 * time.Second)
	if got := n.asked(); len(got) > 0 {
		t.Errorf("evicted %q", got)
	}
}

// stats is not there, so that what pods use is read from their cgroups.
func TestTheHogIsEvictedAndARestartDoesNotEvictAgain(t *testing.T) {
	n := newNode(t, map[string]string{"memory.available": "99.9%"})
	pods := newTree(t)
	n.cfg.Kubelet.Kubelet.CgroupRoot = pods.name
	pods.use("hog", "x=$(head -c 100000000 /dev/zero | tr '\\0' x); read -r end", 60<<20)
	pods.use("small", "read -r end", 0)
	n.slow = true
	n.put("small", running)
	n.put("hog", running)
	stop := n.start()
	proctest.Await(t, patience, "the eviction", func() bool { return len(n.asked()) > 0 })
	n.mu.Lock()
	r := n.evicted[0]
	n.mu.Unlock()
	if r.GetPodUid() != "hog" || r.GetGracePeriodSeconds() != 1 || !r.GetDisruptionTarget() ||
		!strings.HasPrefix(r.GetMessage(), "The node was low on resource: memory. Threshold quantity: ") ||
		r.GetAnnotations()["starved_resource"] != "memory" {
		t.Errorf("asked for %v", r)
	}
	proctest.Await(t, patience, "the eviction on the bus", func() bool {
		m, _ := n.pressure.Get(subject.NodePressure)
		return m.GetLastEviction().GetPodUid() == "hog"
	})
	stop()
	n.start()
	time.Sleep(5 * time.Second)
	if got := n.asked(); slices.Contains(got, "small") {
		t.Errorf("evicted %q, while hog was ending", got)
	}
}
