package report

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/nodestatus/internal/node"
)

// apiserver keeps one Node; its watch lags behind it.
type apiserver struct {
	mu      sync.Mutex
	node    *v1.Node
	down    bool
	creates int
	patches []time.Time
	gets    int
	stale   *v1.Node // what the watch has but for the conditions, if not node
}

func (a *apiserver) Get(context.Context) (*v1.Node, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gets++
	if a.down {
		return nil, errors.New("connection refused")
	}
	if a.node == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "n")
	}
	return a.node.DeepCopy(), nil
}

func (a *apiserver) Create(_ context.Context, n *v1.Node) (*v1.Node, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, errors.New("connection refused")
	}
	a.creates++
	a.node = n.DeepCopy()
	a.node.UID = "uid"
	return a.node.DeepCopy(), nil
}

func (a *apiserver) PatchStatus(_ context.Context, _, to *v1.Node) (*v1.Node, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, errors.New("connection refused")
	}
	a.patches = append(a.patches, time.Now())
	a.node = to.DeepCopy()
	return to.DeepCopy(), nil
}

func (a *apiserver) cached() *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stale != nil {
		stale := a.stale.DeepCopy()
		stale.Status.Conditions = a.node.DeepCopy().Status.Conditions // of the same second: its times show nothing
		return stale
	}
	return a.node.DeepCopy()
}

type rig struct {
	*apiserver
	reporter *Reporter
	mu       sync.Mutex
	observed node.Observed
	events   []string
	found    int
	ready    []bool // as accepted, one after the other
}

func observed() node.Observed {
	q := resource.MustParse
	list := v1.ResourceList{"cpu": q("1"), "memory": q("1Gi"), "pods": q("110"), "ephemeral-storage": q("1Gi")}
	return node.Observed{Capacity: list, Allocatable: list, Machine: nodeinfo.Machine{BootID: "b"}}
}

// start reports in virtual time until the test ends.
func start(t *testing.T, a *apiserver, o node.Observed, register bool) *rig {
	t.Helper()
	r := &rig{apiserver: a, observed: o}
	r.reporter = New(Options{
		Settings: node.Settings{Name: "n", Hostname: "n"},
		Register: register,
		Nodes:    a,
		Cached:   a.cached,
		Observe:  func(context.Context, bool) node.Observed { r.mu.Lock(); defer r.mu.Unlock(); return r.observed },
		Found:    func(*v1.Node) { r.mu.Lock(); defer r.mu.Unlock(); r.found++ },
		Accepted: func(n *v1.Node) { r.mu.Lock(); defer r.mu.Unlock(); r.ready = append(r.ready, node.IsReady(n)) },
		Record: func(_ *v1.Node, e node.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e.Reason)
		},
		UpdateFrequency: 10 * time.Second,
		ReportFrequency: 5 * time.Minute,
		Failed:          func(error) {},
		Succeeded:       func() {},
		Log:             slog.New(slog.DiscardHandler),
		Metrics:         prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			pause := r.reporter.Report(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return r
}

func (r *rig) see(problems ...error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observed.Problems = problems
}

func (r *rig) seen() (events []string, ready []bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events), slices.Clone(r.ready)
}

func (a *apiserver) set(change func(*apiserver)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestNewNodeIsRegisteredAndReadyWithin100ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		o := observed()
		o.Problems = []error{errors.New("not yet")}
		r := start(t, a, o, true)
		if a.creates != 1 || node.IsReady(a.cached()) {
			t.Fatalf("%d creates, ready %v", a.creates, node.IsReady(a.cached()))
		}
		pass(3 * time.Second)
		r.see()
		at := time.Now()
		pass(fastPeriod)
		if !node.IsReady(a.cached()) {
			t.Fatal("not ready 100 ms after the last problem went")
		}
		a.set(func(a *apiserver) {
			if last := a.patches[len(a.patches)-1]; last.Before(at) {
				t.Errorf("patched at %v, before it was ready", last)
			}
			if len(a.patches) > 2 {
				t.Errorf("%d patches, want no report of what is in between", len(a.patches))
			}
		})
		events, _ := r.seen()
		if !slices.Equal(events, []string{"NodeReady"}) {
			t.Errorf("events %v", events)
		}
		if r.found != 0 {
			t.Error("a new node was taken for an old one")
		}
	})
}

func TestUnchangedStatusIsReportedEveryFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		start(t, a, observed(), true)
		pass(time.Minute)
		a.set(func(a *apiserver) { a.patches, a.gets = nil, 0 })
		pass(time.Hour)
		a.set(func(a *apiserver) {
			if n := len(a.patches); n < 11 || n > 13 {
				t.Errorf("%d reports in an hour, want about 12", n)
			}
			if a.gets != 0 {
				t.Errorf("%d reads in an hour, want the watch to do", a.gets)
			}
		})
	})
}

func TestRestartOfAReadyNodeChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		s := node.Settings{Name: "n", Hostname: "n"}
		a.node, _, _ = s.Update(s.Initial(), observed(), time.Now())
		r := start(t, a, observed(), true)
		if r.found != 1 {
			t.Errorf("found %d times, want once", r.found)
		}
		pass(time.Minute)
		events, ready := r.seen()
		if len(events) != 0 || slices.Contains(ready, false) || a.creates != 0 {
			t.Errorf("events %v, ready %v, %d creates", events, ready, a.creates)
		}
	})
}

func TestChangeIsReportedWithinTheFrequencyAndToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		r := start(t, a, observed(), true)
		pass(time.Minute)
		r.see(errors.New("container runtime is down"))
		pass(10 * time.Second)
		if node.IsReady(a.cached()) {
			t.Error("still ready after 10 s")
		}
		pass(time.Minute)
		r.see()
		pass(10 * time.Second)
		a.set(func(a *apiserver) { a.node.Spec.Unschedulable = true })
		pass(time.Minute)
		if events, _ := r.seen(); !slices.Equal(events, []string{"NodeNotReady", "NodeReady", "NodeNotSchedulable"}) {
			t.Errorf("events %v", events)
		}
	})
}

func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{down: true}
		r := start(t, a, observed(), true)
		pass(time.Minute)
		a.set(func(a *apiserver) { a.down = false })
		pass(lastRegisterRetry)
		if a.creates != 1 {
			t.Fatalf("%d creates 7 s after the outage", a.creates)
		}
		pass(time.Minute)
		a.set(func(a *apiserver) { a.down = true })
		r.see(errors.New("container runtime is down"))
		pass(time.Minute)
		a.set(func(a *apiserver) { a.down = false })
		pass(10 * time.Second)
		if node.IsReady(a.cached()) {
			t.Error("what came up in the outage was not reported within 10 s of its end")
		}
		if events, _ := r.seen(); !slices.Equal(events, []string{"NodeNotReady"}) {
			t.Errorf("events %v, want one although there were many tries", events)
		}
	})
}

func TestRegisterNodeFalseWaitsForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		start(t, a, observed(), false)
		pass(time.Minute)
		if a.creates != 0 {
			t.Fatal("the node was created")
		}
		a.set(func(a *apiserver) { a.node = &v1.Node{}; a.node.Name = "n" })
		pass(10 * time.Second)
		if !node.IsReady(a.cached()) {
			t.Error("the created node is not reported")
		}
	})
}

// A volume leaves the list, and comes back before the watch has shown either: what the watch has is equal to what is
// wanted, and the apiserver has something else.
func TestAVolumeThatComesBackIsReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observed()
		o.Volumes = &podsyncv1.Volumes{InUse: []string{"v"}, Generation: 1}
		a := &apiserver{}
		r := start(t, a, o, true)
		pass(time.Minute)
		stale := a.cached()
		a.set(func(a *apiserver) { a.stale = stale })
		for generation, list := range [][]string{nil, {"v"}} {
			r.mu.Lock()
			r.observed.Volumes = &podsyncv1.Volumes{InUse: list, Generation: uint64(generation) + 2}
			r.mu.Unlock()
			r.reporter.Due()
			pass(10 * time.Second)
			a.set(func(a *apiserver) {
				if len(a.node.Status.VolumesInUse) != len(list) {
					t.Errorf("in use: %q, want %q", a.node.Status.VolumesInUse, list)
				}
			})
		}
	})
}
