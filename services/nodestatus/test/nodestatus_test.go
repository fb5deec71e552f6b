// Package test runs nodestatus alone against a real bus, a fake podsync and a small API server.
package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/nodestatus"
)

const nodeName = bustest.NodeName

// host is a node with a real bus, an apiserver, and the services that nodestatus watches.
type host struct {
	*bustest.Node
	t       *testing.T
	api     *apiserver
	podsync *podsync
	reads   *bus.View[*nodestatusv1.Addresses]
	// writes is podsync's part of NODE. A second writer of its would drop what the first one has put.
	writes *bus.Writer
	// shutdownGracePeriod is the configuration's.
	shutdownGracePeriod time.Duration
	// cloudProvider is --cloud-provider.
	cloudProvider string
}

// podsync answers for its health; its dispatcher works unless it hangs.
type podsync struct {
	podsyncv1.UnimplementedPodsyncServiceServer
	mu    sync.Mutex
	turns uint64
	// volumes is what it answers for; nil is a podsync of an earlier version.
	volumes *podsyncv1.GetNodeVolumesResponse
}

func (p *podsync) setVolumes(m *podsyncv1.GetNodeVolumesResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.volumes = m
}

func (p *podsync) GetNodeVolumes(
	ctx context.Context, r *podsyncv1.GetNodeVolumesRequest,
) (*podsyncv1.GetNodeVolumesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.volumes == nil {
		return p.UnimplementedPodsyncServiceServer.GetNodeVolumes(ctx, r)
	}
	return p.volumes, nil
}

func (p *podsync) GetHealth(context.Context, *podsyncv1.GetHealthRequest) (*podsyncv1.GetHealthResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turns++
	return &podsyncv1.GetHealthResponse{Turns: p.turns}, nil
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{Node: bustest.New(t), t: t, api: newAPIServer(t), podsync: &podsync{}}
	cfg := h.Service()
	t.Cleanup(func() {
		h.api.mu.Lock()
		defer h.api.mu.Unlock()
		if t.Failed() {
			t.Logf("node %+v", h.api.node)
		}
	})
	h.Serve(cfg.Socket(role.Podsync), func(s *grpc.Server) { podsyncv1.RegisterPodsyncServiceServer(s, h.podsync) })
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"http://%s"}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, h.api.address)
	if err := os.WriteFile(filepath.Join(h.Dir(), "kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// start starts nodestatus and returns what stops it.
func (h *host) start() (stop func()) {
	h.t.Helper()
	kubelet := kubeletconfig.Default()
	kubelet.NodeLeaseDurationSeconds = 4 // renewed every second
	kubelet.NodeStatusUpdateFrequency.Duration = time.Second
	kubelet.ContentType = "application/json"
	kubelet.ShutdownGracePeriod.Duration = h.shutdownGracePeriod
	cfg := nodestatus.DefaultConfig()
	cfg.Service = h.Service()
	cfg.Kubelet = &kubeletconfig.Config{Kubelet: kubelet, Node: kubeletconfig.NodeFlags{
		Kubeconfig: filepath.Join(h.Dir(), "kubeconfig"), RootDir: h.Dir(), NodeLabels: map[string]string{"a": "b"},
		CloudProvider: h.cloudProvider,
	}}
	return h.Run(func(ctx context.Context) error { return nodestatus.Run(ctx, cfg) })
}

// startOthers puts what podsync and pleg put while all is well.
func (h *host) startOthers() {
	condition := &podsyncv1.Runtime_Condition{Status: true}
	h.Client(role.Podsync, func(c *bus.Client) {
		h.reads = bus.Watch[nodestatusv1.Addresses](c, subject.Node, subject.NodeAddresses, nil)
		h.writes = c.Own(subject.Node)
		h.writes.Put(subject.NodeRuntime,
			&podsyncv1.Runtime{Name: "containerd", Version: "2.4", RuntimeReady: condition, NetworkReady: condition})
		h.writes.Complete()
		beats := c.Own(subject.Heartbeats)
		h.every(time.Second, func(i uint64) {
			beats.Put(subject.HeartbeatKey(role.Podsync, "0"), &busv1.Heartbeat{Pid: 1, Turns: i})
		})
	})
	h.Client(role.PLEG, func(c *bus.Client) {
		w := c.Own(subject.Runtime)
		h.every(time.Second, func(i uint64) {
			w.Put(subject.RuntimeRelist, &plegv1.Relist{Began: timestamppb.Now(), Generation: i})
		})
	})
}

func (h *host) every(d time.Duration, f func(uint64)) {
	h.Run(func(ctx context.Context) error {
		t := time.NewTicker(d)
		defer t.Stop()
		for i := uint64(1); ; i++ {
			f(i)
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
			}
		}
	})
}

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// await waits until what holds.
func (h *host) await(what string, holds func(a *apiserver) bool) {
	h.t.Helper()
	proctest.Await(h.t, patience, what, func() bool {
		h.api.mu.Lock()
		defer h.api.mu.Unlock()
		return holds(h.api)
	})
}

func ready(a *apiserver) *v1.NodeCondition {
	if a.node == nil {
		return nil
	}
	for i, c := range a.node.Status.Conditions {
		if c.Type == v1.NodeReady {
			return &a.node.Status.Conditions[i]
		}
	}
	return nil
}

func renewedSince(at time.Time) func(*apiserver) bool {
	return func(a *apiserver) bool { return len(a.renewed) > 0 && a.renewed[len(a.renewed)-1].After(at) }
}

func delivered(reason string) func(*apiserver) bool {
	return func(a *apiserver) bool {
		return slices.ContainsFunc(a.events, func(e v1.Event) bool {
			return e.Reason == reason && e.Source.Component == "kubelet" && e.InvolvedObject.UID == "node-uid"
		})
	}
}

func TestNodeOfItsOwn(t *testing.T) {
	h := newHost(t)
	stop := h.start()
	h.await("registered, not ready, with the reasons", func(a *apiserver) bool {
		c := ready(a)
		return c != nil && c.Status == v1.ConditionFalse && c.Reason == "KubeletNotReady" && a.node.Labels["a"] == "b"
	})
	h.await("lease of the node", func(a *apiserver) bool {
		return a.lease != nil && len(a.lease.OwnerReferences) == 1 && a.lease.OwnerReferences[0].UID == "node-uid"
	})
	h.await("Starting is delivered", delivered("Starting"))

	h.startOthers()
	h.await("ready", func(a *apiserver) bool { c := ready(a); return c != nil && c.Status == v1.ConditionTrue })
	h.await("NodeReady is delivered", delivered("NodeReady"))
	h.await("NODE/addresses is put", func(*apiserver) bool {
		m, ok := h.reads.Get(subject.NodeAddresses)
		return ok && m.GetNodeName() == nodeName && len(m.GetAddresses()) > 1
	})

	h.api.mu.Lock()
	h.api.ready = nil
	h.api.mu.Unlock()

	t.Log("the bus goes away for 5 s")
	h.StopBus()
	for range 5 {
		h.await("renewed without the bus", renewedSince(time.Now()))
	}

	t.Log("nodestatus restarts while the bus is away")
	stop()
	at := time.Now()
	stop = h.start()
	h.await("renewed after a restart", renewedSince(at))
	h.await("status reported after a restart", func(a *apiserver) bool {
		c := ready(a)
		return c.LastHeartbeatTime.After(at.Add(-time.Second))
	})
	h.StartBus()

	t.Log("the apiserver goes away for 3 s")
	h.api.stop()
	time.Sleep(3 * time.Second) // the outage itself: its length is what is borne
	h.api.start()
	h.await("renewed after the apiserver's return", renewedSince(time.Now()))

	h.api.mu.Lock()
	defer h.api.mu.Unlock()
	for i, s := range h.api.ready {
		if s != v1.ConditionTrue {
			t.Errorf("report %d of %d said Ready is %s", i+1, len(h.api.ready), s)
		}
	}
	stop()
}
