// Package test runs pleg alone against a real bus and a fake runtime.
package test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/pleg"
)

// node is a real bus, a fake runtime behind the gateway's socket, a fake podsync, and pleg itself.
type node struct {
	*bustest.Node
	t       *testing.T
	runtime *fake.Runtime
	podsync *podsync

	mu    sync.Mutex
	hints []hint
}

type hint struct {
	at time.Time
	ev *plegv1.LifecycleEvent
}

// podsync remembers whom pleg woke.
type podsync struct {
	podsyncv1.UnimplementedPodsyncServiceServer
	mu    sync.Mutex
	woken []string
}

func (p *podsync) WakePod(_ context.Context, in *podsyncv1.WakePodRequest) (*podsyncv1.WakePodResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken = append(p.woken, in.GetPodUid())
	return &podsyncv1.WakePodResponse{}, nil
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: bustest.New(t), t: t, runtime: fake.NewRuntime(time.Now), podsync: &podsync{}}
	cfg := n.Service()
	stop, err := n.runtime.Serve(cfg.CRISocket(role.PLEG))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	n.Serve(cfg.Socket(role.Podsync), func(s *grpc.Server) { podsyncv1.RegisterPodsyncServiceServer(s, n.podsync) })
	return n
}

// peer is podsync's connection to the bus: it hears hints and reads RUNTIME.
func (n *node) peer() (view *bus.View[*plegv1.Relist]) {
	n.t.Helper()
	n.Client(role.Podsync, func(c *bus.Client) {
		view = bus.Watch[plegv1.Relist](c, subject.Runtime, subject.RuntimeRelist, nil)
		c.Subscribe(subject.LifecycleEvents, func(_ string, data []byte) {
			ev := &plegv1.LifecycleEvent{}
			if err := proto.Unmarshal(data, ev); err != nil {
				n.t.Errorf("a hint cannot be read: %v", err)
				return
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			n.hints = append(n.hints, hint{time.Now(), ev})
		})
	})
	return view
}

func (n *node) startPLEG() {
	n.t.Helper()
	cfg := pleg.DefaultConfig()
	cfg.Service = n.Service()
	cfg.RelistPeriod, cfg.SlowestRelistPeriod = 200*time.Millisecond, 2*time.Second
	n.Run(func(ctx context.Context) error { return pleg.Run(ctx, cfg) })
}

// startPod starts a pod of one container in the runtime and returns the container's id.
func (n *node) startPod(uid string) string {
	n.t.Helper()
	_, ids, err := n.runtime.StartPod(n.t.Context(),
		fake.Pod{Namespace: "default", Name: uid, UID: uid, Containers: []string{"main"}})
	if err != nil {
		n.t.Fatal(err)
	}
	return ids["main"]
}

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// await waits until what holds.
func (n *node) await(what string, holds func() bool) {
	n.t.Helper()
	proctest.Await(n.t, patience, what, holds)
}

func (n *node) died(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hints {
		if h.ev.GetId() == id && h.ev.GetType() == plegv1.LifecycleEventType_LIFECYCLE_EVENT_TYPE_CONTAINER_DIED {
			return true
		}
	}
	return false
}

func (n *node) woken(uid string) bool {
	n.podsync.mu.Lock()
	defer n.podsync.mu.Unlock()
	for _, w := range n.podsync.woken {
		if w == uid {
			return true
		}
	}
	return false
}

func (n *node) exit(id string) {
	n.t.Helper()
	if err := n.runtime.ExitContainer(id, 1); err != nil {
		n.t.Fatal(err)
	}
}

func TestExitsAreToldWhateverIsAway(t *testing.T) {
	n := newNode(t)
	view := n.peer()
	ids := map[string]string{}
	for _, uid := range []string{"stream", "muted", "nobus", "after"} {
		ids[uid] = n.startPod(uid)
	}
	n.startPLEG()
	n.await("RUNTIME/relist shows the stream and a relist", func() bool {
		r, ok := view.Get(subject.RuntimeRelist)
		return ok && r.GetStreaming() && r.GetGeneration() > 2 && r.GetError() == ""
	})
	n.await("the relist slows down", func() bool {
		r, _ := view.Get(subject.RuntimeRelist)
		return r.GetPeriodMilliseconds() == 2000
	})

	n.runtime.Fail("ListContainers", errors.New("nothing is listed")) // so that no relist can find it
	n.exit(ids["stream"])
	n.await("a hint from the stream", func() bool { return n.died(ids["stream"]) })
	n.runtime.Fail("ListContainers", nil)

	streams := n.runtime.EventStreams()
	n.runtime.MuteEvents(true)
	n.exit(ids["muted"])
	n.await("a hint from the relist", func() bool { return n.died(ids["muted"]) })
	n.runtime.MuteEvents(false)
	n.await("the stream is replaced", func() bool {
		r, _ := view.Get(subject.RuntimeRelist)
		return r.GetStreaming() && n.runtime.EventStreams() >= streams
	})

	n.StopBus()
	n.exit(ids["nobus"])
	n.await("podsync is woken past the bus", func() bool { return n.woken("nobus") })
	last, _ := view.Get(subject.RuntimeRelist)
	n.StartBus()
	// A later relist can only have come over the new bus; what was heard before it is still in the view.
	n.await("RUNTIME/relist is put again", func() bool {
		r, _ := view.Get(subject.RuntimeRelist)
		return view.Synced() && r.GetGeneration() > last.GetGeneration()
	})
	n.exit(ids["after"])
	n.await("a hint over the new bus", func() bool { return n.died(ids["after"]) })
}

// Pods are followed as usual if their annotations make the runtime's lists larger than a message.
func TestListsLargerThanAMessage(t *testing.T) {
	n := newNode(t)
	n.runtime.SetStreamBatch(1) // as the gateway's
	view := n.peer()
	ids := map[string]string{}
	long := map[string]string{"long": strings.Repeat("x", 1350<<10)}
	for i := range 13 {
		uid := fmt.Sprint("long-", i)
		_, containers, err := n.runtime.StartPod(t.Context(), fake.Pod{
			Namespace: "default", Name: uid, UID: uid, Containers: []string{"main"}, Annotations: long,
			ContainerAnnotations: long,
		})
		if err != nil {
			t.Fatal(err)
		}
		ids[uid] = containers["main"]
	}
	n.startPLEG()
	n.await("relists succeed", func() bool {
		r, ok := view.Get(subject.RuntimeRelist)
		return ok && r.GetGeneration() > 2 && r.GetError() == ""
	})
	n.runtime.MuteEvents(true)
	n.exit(ids["long-7"])
	n.await("a hint from the relist", func() bool { return n.died(ids["long-7"]) })
}

func TestRestartHintsAtWhatEndedMeanwhile(t *testing.T) {
	n := newNode(t)
	n.peer()
	n.startPod("fine")
	n.exit(n.startPod("ended"))
	n.startPLEG()
	n.await("a hint at the pod in which something ended", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, h := range n.hints {
			if h.ev.GetPodUid() == "fine" {
				t.Fatalf("a hint at a pod in which all runs: %v", h.ev)
			}
			if h.ev.GetPodUid() == "ended" {
				return true
			}
		}
		return n.woken("ended")
	})
}
