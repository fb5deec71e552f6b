// Package test runs pleg alone against a real bus and a fake runtime.
package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
	"github.com/microlet/microlet/services/pleg"
)

func TestMain(m *testing.M) {
	proctest.Program(func() {
		peertest.Ready()
		fmt.Println(watch(os.Args[1]))
	})
	os.Exit(m.Run())
}

// watch asks the pleg at a socket for hints, and returns the code of its answer.
func watch(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := unixgrpc.Dial(path, unixgrpc.DialOptions{})
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	stream, err := plegv1.NewPlegServiceClient(conn).WatchPods(ctx, &plegv1.WatchPodsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	return status.Code(err).String()
}

// node is a real bus, a fake runtime behind the gateway's socket, a podsync that reads hints, and pleg itself.
type node struct {
	*bustest.Node
	t       *testing.T
	runtime *fake.Runtime
	podsync *podsync
	conn    *grpc.ClientConn // podsync's

	mu    sync.Mutex
	hints []hint
}

type hint struct {
	at time.Time
	ev *plegv1.LifecycleEvent
}

// podsync reads pleg's stream as podsync does, one after the other.
type podsync struct {
	mu    sync.Mutex
	woken []string
	// begun counts streams, each by its first message, and ended their ends.
	begun, ended int
	last         *plegv1.WatchPodsResponse
}

func (p *podsync) run(ctx context.Context, pleg plegv1.PlegServiceClient) error {
	for ctx.Err() == nil {
		stream, err := pleg.WatchPods(ctx, &plegv1.WatchPodsRequest{}, grpc.WaitForReady(true))
		for begun := false; err == nil; begun = true {
			var m *plegv1.WatchPodsResponse
			if m, err = stream.Recv(); err == nil {
				p.take(m, !begun)
			}
		}
		p.mu.Lock()
		p.ended++
		p.mu.Unlock()
	}
	return nil
}

func (p *podsync) take(m *plegv1.WatchPodsResponse, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first && m.GetAllPods() {
		p.begun++
	}
	p.last = m
	p.woken = append(p.woken, m.GetPodUids()...)
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
	conn, err := unixgrpc.Dial(cfg.Socket(role.PLEG), unixgrpc.DialOptions{Server: role.PLEG, Peers: cfg.Peers()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.conn = conn
	n.Run(func(ctx context.Context) error { return n.podsync.run(ctx, plegv1.NewPlegServiceClient(conn)) })
	return n
}

// peer is the connection to the bus of a podsync of before the stream: it hears hints and reads RUNTIME.
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

func (n *node) startPLEG() (stop func()) {
	n.t.Helper()
	cfg := pleg.DefaultConfig()
	cfg.Service = n.Service()
	cfg.RelistPeriod, cfg.SlowestRelistPeriod = 200*time.Millisecond, 2*time.Second
	return n.Run(func(ctx context.Context) error { return pleg.Run(ctx, cfg) })
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
	n.await("a hint from podsync's stream", func() bool { return n.woken("stream") })
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
	n.await("podsync is woken without a bus", func() bool { return n.woken("nobus") })
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

// The stream shows podsync that pleg's loop turns, which of its relists succeed, and when it ends.
func TestTheStreamShowsWhetherPlegWatches(t *testing.T) {
	n := newNode(t)
	stop := n.startPLEG()
	last := func() (turns, relist uint64) {
		n.podsync.mu.Lock()
		defer n.podsync.mu.Unlock()
		return n.podsync.last.GetTurns(), n.podsync.last.GetRelist()
	}
	n.await("a relist", func() bool { _, relist := last(); return relist > 1 })
	health := grpc_health_v1.NewHealthClient(n.conn)
	for name, want := range map[string]codes.Code{
		plegv1.PlegService_ServiceDesc.ServiceName: codes.OK, "microlet.pleg.v1.OtherService": codes.NotFound,
	} {
		_, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
		if status.Code(err) != want {
			t.Errorf("asked for %s: %v, want %s", name, err, want)
		}
	}

	n.runtime.Fail("ListContainers", errors.New("nothing is listed"))
	turns, relist := last()
	n.await("the loop turns while relists fail", func() bool { now, _ := last(); return now > turns+5 })
	if _, now := last(); now > relist+1 { // one may have been under way
		t.Errorf("relist %d is shown as one that succeeded, the last one was %d", now, relist)
	}
	n.runtime.Fail("ListContainers", nil)
	n.await("a relist succeeds", func() bool { _, now := last(); return now > relist+1 })

	began := time.Now()
	stop()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("pleg ended after %s, as if it waited for podsync", took)
	}
	n.await("the stream ends with pleg", func() bool {
		n.podsync.mu.Lock()
		defer n.podsync.mu.Unlock()
		return n.podsync.ended > 0
	})
	n.startPLEG()
	n.await("a stream of the next pleg", func() bool {
		n.podsync.mu.Lock()
		defer n.podsync.mu.Unlock()
		return n.podsync.begun == 2
	})
}

// podsync alone reads hints: a service that was taken over cannot end its stream by one of its own.
func TestOnlyPodsyncReadsHints(t *testing.T) {
	n := newNode(t)
	n.startPLEG()
	n.await("podsync has a stream", func() bool {
		n.podsync.mu.Lock()
		defer n.podsync.mu.Unlock()
		return n.podsync.begun == 1
	})
	prober, err := role.Get(role.Prober)
	if err != nil {
		t.Fatal(err)
	}
	cfg := n.Service()
	socket := cfg.Socket(role.PLEG)
	for _, dir := range []string{n.Dir(), filepath.Join(n.Dir(), "sock"), filepath.Dir(socket)} {
		if err := os.Chmod(dir, 0o755); err != nil { // another user can get there
			t.Fatal(err)
		}
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	got := peertest.Start(t, peertest.Options{UID: prober.UID}, socket).Line(t)
	if got != codes.PermissionDenied.String() {
		t.Errorf("the prober gets %s", got)
	}
	n.podsync.mu.Lock()
	defer n.podsync.mu.Unlock()
	if n.podsync.begun != 1 || n.podsync.ended != 0 {
		t.Errorf("podsync's stream was replaced: %d streams, %d ends", n.podsync.begun, n.podsync.ended)
	}
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
