// Package test runs the prober alone against a real bus, real HTTP targets and a fake runtime.
package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/notifytest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/prober"
)

const container = "main"

// node is a real bus, a fake runtime behind the gateway's socket, and podsync's side of the bus.
type node struct {
	*bustest.Node
	t       *testing.T
	runtime *fake.Runtime

	pods, statuses, assignments *bus.Writer
	results                     *bus.View[*proberv1.ProbeResult]
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: bustest.New(t), t: t, runtime: fake.NewRuntime(time.Now)}
	cfg := n.Service()
	stop, err := n.runtime.Serve(cfg.CRISocket(role.Prober))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return n
}

// startPodsync connects podsync to the bus. It has no pods yet.
func (n *node) startPodsync() {
	n.t.Helper()
	n.Client(role.Podsync, func(c *bus.Client) {
		n.pods, n.statuses, n.assignments = c.Own(subject.Pods), c.Own(subject.PodStatus), c.Own(subject.Assignment)
		for _, w := range []*bus.Writer{n.pods, n.statuses, n.assignments} {
			w.Complete()
		}
		n.results = bus.Watch[proberv1.ProbeResult](c, subject.ProbeResults, ">", nil)
	})
}

// startProber starts a replica of the prober and returns what stops it.
func (n *node) startProber(replica string) (stop func()) {
	n.t.Helper()
	cfg := prober.DefaultConfig()
	cfg.Service, cfg.PluginDir = n.Service(), ""
	cfg.Service.Replica = replica
	cfg.Kubelet = &kubeletconfig.Config{Kubelet: kubeletconfig.Default()}
	return n.Run(func(ctx context.Context) error { return prober.Run(ctx, cfg) })
}

// run puts what podsync says about a running pod. Its container has this readiness probe.
func (n *node) run(uid, replica string, handler v1.ProbeHandler) {
	n.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: container, ReadinessProbe: &v1.Probe{
			ProbeHandler: handler, PeriodSeconds: 1, TimeoutSeconds: 300, SuccessThreshold: 1, FailureThreshold: 2,
		}}}},
	}
	raw, err := pod.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	status, err := (&v1.PodStatus{Phase: v1.PodRunning,
		ContainerStatuses: []v1.ContainerStatus{{Name: container}}}).Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.pods.Put(subject.PodKey(uid), &podsyncv1.Pod{Pod: raw})
	n.statuses.Put(subject.PodKey(uid),
		&podsyncv1.PodStatus{PodIps: []string{"127.0.0.1"}, Status: status, Containers: []*podsyncv1.Container{{
			Name:    container,
			Id:      "id-" + uid,
			State:   podsyncv1.ContainerState_CONTAINER_STATE_RUNNING,
			Started: timestamppb.Now(),
		}}})
	n.assign(uid, replica, 1)
}

func (n *node) assign(uid, replica string, generation uint64) {
	n.assignments.Put(subject.PodKey(uid), &podsyncv1.Assignment{Replica: replica, Generation: generation})
}

// result is the newest result of a pod's readiness probe that podsync has.
func (n *node) result(uid string) *proberv1.ProbeResult {
	r, _ := n.results.Get(subject.ProbeResultKey(uid, container, subject.ProbeReadiness))
	return r
}

// await waits until what holds, for as long as anything may take on a busy machine.
func (n *node) await(what string, holds func() bool) {
	n.t.Helper()
	proctest.Await(n.t, time.Minute, what, holds)
}

func (n *node) awaitResult(uid string, want proberv1.Outcome) {
	n.t.Helper()
	n.await(fmt.Sprintf("%s of %s", want, uid), func() bool { return n.result(uid).GetResult() == want })
}

// target is what an HTTP probe asks.
type target struct {
	handler v1.ProbeHandler
	asked   atomic.Int64
	broken  atomic.Bool
}

// newTarget serves a target. If hold is not nil, no request is answered before it is closed.
func newTarget(t *testing.T, hold <-chan struct{}) *target {
	t.Helper()
	g := &target{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.asked.Add(1)
		if hold != nil {
			<-hold
		}
		if g.broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	g.handler.HTTPGet = &v1.HTTPGetAction{
		Path: "/",
		Port: intstr.FromInt32(int32(s.Listener.Addr().(*net.TCPAddr).Port)),
	}
	return g
}

// askedAgain waits until a target has been asked some more times.
func (n *node) askedAgain(g *target, what string) {
	n.t.Helper()
	before := g.asked.Load()
	n.await(what, func() bool { return g.asked.Load() >= before+3 })
}

func TestProbesGoOnWithoutPeersAndBus(t *testing.T) {
	n := newNode(t)
	n.StopBus()
	n.startProber("0") // no peer is there
	n.StartBus()
	n.startPodsync()
	g := newTarget(t, nil)
	n.run("web", "0", g.handler)
	n.awaitResult("web", proberv1.Outcome_OUTCOME_SUCCESS)

	n.StopBus()
	n.askedAgain(g, "probes while the bus is down")
	if n.result("web").GetResult() != proberv1.Outcome_OUTCOME_SUCCESS {
		t.Errorf("the result is %v while the bus is down, and was a success", n.result("web"))
	}
	g.broken.Store(true)
	n.askedAgain(g, "failures while the bus is down")
	n.StartBus()
	n.awaitResult("web", proberv1.Outcome_OUTCOME_FAILURE)
	g.broken.Store(false)
	n.awaitResult("web", proberv1.Outcome_OUTCOME_SUCCESS)
}

// TestAStartWithoutPodsIsNoFailedStart: systemd ends a unit that does not say READY within its TimeoutStartSec.
func TestAStartWithoutPodsIsNoFailedStart(t *testing.T) {
	n := newNode(t)
	n.StopBus()
	supervisor := notifytest.New(t)
	n.startProber("0")
	supervisor.Until(run.NotifyReady)
}

func TestHungTargetsDelayNoOtherProbe(t *testing.T) {
	const hung = 20
	n := newNode(t)
	n.startPodsync()
	hold := make(chan struct{})
	silent := newTarget(t, hold)
	release := n.runtime.Hang("ExecSync")
	t.Cleanup(func() { close(hold); release() }) // before the servers close, which wait for their requests
	n.startProber("0")
	for i := range hung {
		n.run(fmt.Sprintf("silent-%d", i), "0", silent.handler)
		n.run(fmt.Sprintf("stuck-%d", i), "0", v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}})
	}
	n.await("every target hangs", func() bool {
		return silent.asked.Load() == hung && n.runtime.InFlight("ExecSync") == hung
	})
	g := newTarget(t, nil)
	n.run("web", "0", g.handler)
	n.awaitResult("web", proberv1.Outcome_OUTCOME_SUCCESS)
	n.askedAgain(g, "probes beside those that hang")
	if asked, execs := silent.asked.Load(), n.runtime.InFlight("ExecSync"); asked != hung || execs != hung {
		t.Errorf("%d requests and %d commands, want %d of each: a probe begins when the one before it has ended", asked,
			execs, hung)
	}
	for i := range hung {
		for _, uid := range []string{fmt.Sprintf("silent-%d", i), fmt.Sprintf("stuck-%d", i)} {
			if r := n.result(uid); r.GetResult() != proberv1.Outcome_OUTCOME_UNSPECIFIED {
				t.Errorf("%s has the result %v, and no probe has ended", uid, r)
			}
		}
	}
}

func TestTwoProbersShare(t *testing.T) {
	n := newNode(t)
	n.startPodsync()
	stop := map[string]func(){"0": n.startProber("0"), "1": n.startProber("1")}
	targets := map[string]*target{}
	for i := range 6 {
		uid := fmt.Sprintf("web-%d", i)
		targets[uid] = newTarget(t, nil)
		n.run(uid, fmt.Sprint(i%2), targets[uid].handler)
	}
	for i := range 6 {
		uid := fmt.Sprintf("web-%d", i)
		n.awaitResult(uid, proberv1.Outcome_OUTCOME_SUCCESS)
		if r := n.result(uid); r.GetReplica() != fmt.Sprint(i%2) || r.GetGeneration() != 1 {
			t.Errorf("%s was probed by replica %s in generation %d, want %d and 1", uid, r.GetReplica(),
				r.GetGeneration(), i%2)
		}
	}

	stop["1"]()
	n.askedAgain(targets["web-0"], "probes by the replica that is left")
	if r := n.result("web-1"); r.GetReplica() != "1" || r.GetResult() != proberv1.Outcome_OUTCOME_SUCCESS {
		t.Errorf("the result is %v after its replica has ended, and was a success", r)
	}
	for i := 1; i < 6; i += 2 {
		n.assign(fmt.Sprintf("web-%d", i), "0", 2)
	}
	for i := 1; i < 6; i += 2 {
		uid := fmt.Sprintf("web-%d", i)
		n.await("the other replica probes "+uid, func() bool {
			r := n.result(uid)
			return r.GetReplica() == "0" && r.GetGeneration() == 2
		})
		n.askedAgain(targets[uid], "probes of "+uid)
		if r := n.result(uid); r.GetResult() != proberv1.Outcome_OUTCOME_SUCCESS {
			t.Errorf("%s has the result %v after it has changed its replica", uid, r)
		}
	}
}
