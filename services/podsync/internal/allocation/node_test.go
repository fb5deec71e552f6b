package allocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// disk is a store on a disk that may be slow or full.
type disk struct {
	mu   sync.Mutex
	pods map[types.UID]pod.Resources
	full bool
	// hangs makes writes wait until it is closed.
	hangs chan struct{}
}

func newDisk() *disk { return &disk{pods: map[types.UID]pod.Resources{}} }

func (d *disk) Get(uid types.UID) (pod.Resources, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.pods[uid]
	return r, ok
}

func (d *disk) Write(changes map[types.UID]*pod.Resources) map[types.UID]error {
	d.mu.Lock()
	hangs := d.hangs
	d.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	failed := map[types.UID]error{}
	for uid, r := range changes {
		switch {
		case d.full:
			failed[uid] = errors.New("no space left on device")
		case r == nil:
			delete(d.pods, uid)
		default:
			d.pods[uid] = *r
		}
	}
	return failed
}

func (d *disk) UIDs() []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.pods))
}

func (d *disk) set(change func(d *disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

// node is an Allocation with a real admission: 4 CPUs, and pods that are admitted as workers have them.
type node struct {
	t *testing.T
	*Allocation
	admitter          *admission.Admitter
	granted, actuated *disk
	events            *record.FakeRecorder
	synced            chan struct{}
	stop              func()

	mu      sync.Mutex
	changes []types.UID
	// infeasible rejects every resize as one that the node cannot do.
	infeasible bool
	evicted    []types.UID
}

// newNode returns one that runs on these files until stop.
func newNode(t *testing.T, granted, actuated *disk) *node {
	t.Helper()
	n := &node{
		t: t, granted: granted, actuated: actuated, events: record.NewFakeRecorder(10000), synced: make(chan struct{}),
	}
	n.admitter = admission.NewAdmitter(admission.AdmitterOptions{
		Handlers: []admission.Handler{admission.NodeFit{}}, Resizes: []admission.Handler{n, admission.NodeFit{}},
		Nodes: n, Evictor: n, Running: func(context.Context) (map[types.UID]bool, error) { return nil, nil },
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	n.Allocation = newAllocation(Options{
		Admission: n.admitter, Synced: n.synced, Changed: n.change, Events: n.events, Log: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	}, granted, actuated)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n
}

// startNode returns a node of which every source is synced, which runs until the test ends.
func startNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, newDisk(), newDisk())
	t.Cleanup(n.stop)
	close(n.synced)
	return n
}

func (n *node) change(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes = append(n.changes, uid)
}

// changed returns the pods that were called changed since the last call.
func (n *node) changed() []types.UID {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.changes
	n.changes = nil
	return c
}

func (n *node) Node() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelOSStable: "linux"}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("4Gi"),
			v1.ResourcePods: resource.MustParse("5000"),
		}},
	}
}

func (*node) Wait(context.Context) error    { return nil }
func (*node) Refresh(context.Context) error { return nil }

// Admit implements admission.Handler.
func (n *node) Admit(context.Context, *admission.Attributes) admission.Result {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.infeasible {
		return admission.Result{Reason: v1.PodReasonInfeasible, Message: "never", Infeasible: "swap_limitation"}
	}
	return admission.Result{}
}

func (n *node) Evict(_ context.Context, victim *v1.Pod) error {
	time.Sleep(5 * time.Second)
	n.mu.Lock()
	n.evicted = append(n.evicted, victim.UID)
	n.mu.Unlock()
	n.end(victim.UID)
	return nil
}

func (n *node) end(uid types.UID) {
	n.admitter.Ended(uid)
	n.Ended(uid)
}

func (n *node) remove(uid types.UID) {
	n.admitter.Forget(uid)
	n.Forget(uid)
}

const static = podsyncv1.PodSource_POD_SOURCE_FILE

// admit does for pods that run what their workers do.
func (n *node) admit(pods ...*v1.Pod) {
	n.t.Helper()
	for _, p := range pods {
		p = n.Apply(p)
		if v, err := n.admitter.Admit(n.t.Context(), p, static, true); err != nil || !v.Admitted() {
			n.t.Fatalf("%s: %+v, %v", p.Name, v, err)
		}
		n.Admitted(p)
	}
	synctest.Wait()
}

// want gives the node newer versions of pods, all at once.
func (n *node) want(pods ...*v1.Pod) {
	for _, p := range pods {
		n.Want(p)
	}
	synctest.Wait()
}

// has is the CPU that a pod has.
func (n *node) has(name string) string {
	r, _ := n.grantOf(types.UID(name))
	return cpuOf(r)
}

func cpuOf(r pod.Resources) string {
	amount := r.Containers["c"].Requests[v1.ResourceCPU]
	return amount.String()
}

// wantCPU compares what pods have, such as "a:1 b:500m".
func (n *node) wantCPU(want string) {
	n.t.Helper()
	synctest.Wait()
	var got []string
	for pair := range strings.FieldsSeq(want) {
		name, _, _ := strings.Cut(pair, ":")
		got = append(got, name+":"+n.has(name))
	}
	if strings.Join(got, " ") != want {
		n.t.Errorf("the pods have %s, want %s", got, want)
	}
}

// shows are the conditions of a pod, such as "PodResizePending Deferred 2".
func (n *node) shows(name string) []string {
	synctest.Wait()
	var all []string
	for _, c := range n.Conditions(types.UID(name)) {
		all = append(all, strings.Join(strings.Fields(fmt.Sprint(c.Type, " ", c.Reason, " ", c.ObservedGeneration)), " "))
	}
	return all
}

func (n *node) wantShown(name string, want ...string) {
	n.t.Helper()
	if got := n.shows(name); !slices.Equal(got, want) {
		n.t.Errorf("%s shows %q, want %q", name, got, want)
	}
}

// recorded are the Events since the last call.
func (n *node) recorded() []string {
	synctest.Wait()
	var all []string
	for {
		select {
		case e := <-n.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// reasons are the types and reasons of the Events since the last call.
func (n *node) reasons() []string {
	var all []string
	for _, e := range n.recorded() {
		all = append(all, strings.Join(strings.Fields(e)[:2], " "))
	}
	return all
}

func (n *node) count(c prometheus.Collector, want float64) {
	n.t.Helper()
	if got := testutil.ToFloat64(c); got != want {
		n.t.Errorf("counted %v, want %v", got, want)
	}
}

// testPod returns a pod that requests so much CPU.
func testPod(name, cpu string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Generation: 1},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)},
			},
		}}},
	}
}

// asking is a newer version of a pod that requests so much CPU.
func asking(p *v1.Pod, cpu string) *v1.Pod {
	p = p.DeepCopy()
	p.Generation++
	p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse(cpu)
	return p
}

func withPriority(p *v1.Pod, priority int32) *v1.Pod {
	p.Spec.Priority = &priority
	return p
}
