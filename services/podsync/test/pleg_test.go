package test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// pleg is one that a test plays.
type pleg struct {
	plegv1.UnimplementedPlegServiceServer
	hints chan *plegv1.WatchPodsResponse
	stop  func()

	mu      sync.Mutex
	streams int
}

// pleg serves hints, and shows podsync that it watches the runtime.
func (n *node) pleg() *pleg {
	n.t.Helper()
	p := &pleg{hints: make(chan *plegv1.WatchPodsResponse)}
	cfg := n.Service()
	p.stop = n.Serve(cfg.Socket(role.PLEG), func(s *grpc.Server) { plegv1.RegisterPlegServiceServer(s, p) })
	return p
}

func (p *pleg) WatchPods(_ *plegv1.WatchPodsRequest, out grpc.ServerStreamingServer[plegv1.WatchPodsResponse]) error {
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	m := &plegv1.WatchPodsResponse{AllPods: true}
	for i := uint64(1); ; i++ {
		m.Turns, m.Relist = i, i
		if err := out.Send(m); err != nil {
			return err
		}
		select {
		case <-out.Context().Done():
			return nil
		case m = <-p.hints:
		case <-tick.C:
			m = &plegv1.WatchPodsResponse{}
		}
	}
}

// serves waits until podsync has a stream.
func (p *pleg) serves(t *testing.T) {
	t.Helper()
	proctest.Await(t, soon, "podsync reads hints", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.streams > 0
	})
}

// uid is the UID of a pod, by its manifest's name.
func (n *node) uid(name string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(n.runtime.Conn())
	got, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, s := range got.GetItems() {
		if s.GetMetadata().GetName() == name+"-"+bustest.NodeName {
			return s.GetMetadata().GetUid()
		}
	}
	n.t.Fatalf("pod %s has no sandbox", name)
	return ""
}

// exits ends the container of a pod, and logs how long after report it is started again.
func (n *node) exits(name, when string, report func()) {
	n.t.Helper()
	id := n.running(name)[0]
	if err := n.runtime.ExitContainer(id, 1); err != nil {
		n.t.Fatal(err)
	}
	report()
	took := proctest.Await(n.t, soon, "the container of "+name+" is started again",
		func() bool { return len(n.running(name)) == 1 })
	n.t.Logf("an exit %s: the container is started again after %s", when, took.Round(time.Millisecond))
}

// TestHintsNeedNoBus: pleg's hints arrive whether there is a bus or not, and pleg's death is a look at the runtime.
func TestHintsNeedNoBus(t *testing.T) {
	n := newNode(t)
	pleg := n.pleg()
	for _, name := range []string{"a", "b", "c", "d"} {
		n.put(name)
	}
	p := n.start()
	for _, name := range []string{"a", "b", "c", "d"} {
		n.runs(name)
	}
	pleg.serves(t)
	hint := func(name string) func() {
		uid := n.uid(name)
		return func() { pleg.hints <- &plegv1.WatchPodsResponse{PodUids: []string{uid}} }
	}
	n.exits("a", "with a bus", hint("a"))
	n.StopBus()
	n.exits("b", "without a bus", hint("b"))
	if log := p.Log.String(); strings.Contains(log, "relisting here") {
		t.Errorf("podsync relists beside a pleg that watches the runtime:\n%s", log)
	}
	n.exits("c", "that pleg's death hides", pleg.stop)
	n.exits("d", "without pleg", func() {})
	proctest.Await(t, soon, "the log says that podsync relists",
		func() bool { return strings.Contains(p.Log.String(), "relisting here") })
}

// TestALargeHint: a pleg that was taken over cannot make podsync hold what it sends.
func TestALargeHint(t *testing.T) {
	n := newNode(t)
	pleg := n.pleg()
	n.put("a")
	p := n.start()
	n.runs("a")
	pleg.serves(t)
	pleg.hints <- &plegv1.WatchPodsResponse{PodUids: []string{strings.Repeat("x", 1<<20)}}
	proctest.Await(t, soon, "the stream has ended",
		func() bool { return strings.Contains(p.Log.String(), "larger than max") })
	n.exits("a", "beside a pleg that sends too much", func() {})
}
