package test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/outbox/delivery"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// apiserver takes events, knows their names, and can be away or refuse.
type apiserver struct {
	mu      sync.Mutex
	away    bool
	refuse  string // reason of events that it refuses for good
	fail    string // reason of events over which it fails
	order   []string
	events  map[string]*corev1.Event
	patches int
	calls   int
}

func (a *apiserver) Create(_ context.Context, e *corev1.Event) (*corev1.Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	if a.away {
		return nil, errors.New("dial tcp: connection refused")
	}
	if e.Reason == a.refuse {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, e.Name, errors.New("no"))
	}
	if e.Reason == a.fail {
		return nil, apierrors.NewInternalError(errors.New("failed calling webhook"))
	}
	if _, known := a.events[e.Name]; known {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, e.Name)
	}
	if a.events == nil {
		a.events = map[string]*corev1.Event{}
	}
	stored := e.DeepCopy()
	stored.ResourceVersion = fmt.Sprint(a.calls)
	a.events[e.Name] = stored
	a.order = append(a.order, e.Message)
	return stored, nil
}

func (a *apiserver) Patch(_ context.Context, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	if a.away {
		return nil, errors.New("dial tcp: connection refused")
	}
	if a.events[e.Name] == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, e.Name)
	}
	a.patches++
	a.events[e.Name] = e.DeepCopy()
	return e, nil
}

func (a *apiserver) set(f func()) { a.mu.Lock(); defer a.mu.Unlock(); f() }

func (a *apiserver) delivered() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.order)
}

// part runs f until the returned function is called, which waits for it.
func part(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = f(ctx) })
	return func() { cancel(); wg.Wait() }
}

// deliver gives the apiserver the events that come out of the bus, until the test ends.
func deliver(t *testing.T, by *peer, api *apiserver) {
	t.Helper()
	d, err := delivery.New(by.Client, api, delivery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(part(d.Run))
}

func podOf(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pod-%d", i), UID: "u"}}
}

// Events recorded while bus, apiserver and deliverer are away in turns all arrive.
func TestEventsArriveWhateverIsAway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	api := &apiserver{refuse: "Refused"}
	podsync := n.peer(role.Podsync, "0", "", nil)
	r := outbox.NewRecorder(podsync.Client, "node-1", slog.Default())
	defer part(r.Run)()

	var want []string
	record := func(count int) {
		for range count {
			message := fmt.Sprintf("message %d", len(want))
			want = append(want, message)
			r.Event(podOf(len(want)), corev1.EventTypeNormal, "Started", message)
		}
	}
	deliverer := func() func() {
		p := n.peer(role.NodeStatus, "0", "", nil)
		d, err := delivery.New(p.Client, api, delivery.Options{QPS: 500, Burst: 100, Metrics: p.metrics})
		if err != nil {
			t.Fatal(err)
		}
		stop := part(d.Run)
		return func() { stop(); p.close() }
	}
	arrived := func() bool { return len(api.delivered()) == len(want) }

	stop := deliverer()
	record(5)
	t.Logf("5 events delivered after %v", proctest.Await(t, bound, "delivery", arrived))

	n.bus.Kill()
	proctest.Await(t, bound, "the recorder's bus is gone", func() bool { return !podsync.Connected() })
	record(10)
	n.start()
	t.Logf("10 events recorded while the bus was away: delivered %v after its return",
		proctest.Await(t, bound, "after the bus", arrived))

	api.set(func() { api.away = true })
	record(10)
	calls := func() int { api.mu.Lock(); defer api.mu.Unlock(); return api.calls }
	now := calls()
	proctest.Await(t, bound, "delivery is tried", func() bool { return calls() > now+1 })
	n.bus.Kill() // the bus dies while a record is given out
	n.start()
	api.set(func() { api.away = false })
	t.Logf("10 events delivered %v after the apiserver's return",
		proctest.Await(t, bound, "after the apiserver", arrived))

	stop()
	record(10)
	proctest.Await(t, bound, "the bus has them", func() bool { return r.Waiting() == 0 })
	n.bus.Kill()
	n.start()
	stop = deliverer()
	defer func() { stop() }()
	t.Logf("10 events delivered %v after the deliverer's return",
		proctest.Await(t, 2*bound, "after the deliverer", arrived))

	r.Event(podOf(0), corev1.EventTypeWarning, "Refused", "the apiserver refuses this for good")
	record(3)
	proctest.Await(t, bound, "one that is refused holds up none", arrived)
	got := api.delivered()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	for name, e := range api.events {
		if e.Source.Component != "kubelet" || e.Source.Host != "node-1" || e.ReportingController != "kubelet" ||
			e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.UID != "u" ||
			!strings.HasPrefix(name, e.InvolvedObject.Name+".") {
			t.Errorf("event is not as the kubelet's: %+v", e)
		}
	}
}

// The same event again is a higher count of the first, as with the kubelet.
func TestRepeatedEventsAreCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	api := &apiserver{}
	podsync, ns := n.peer(role.Podsync, "0", "", nil), n.peer(role.NodeStatus, "0", "", nil)
	r := outbox.NewRecorder(podsync.Client, "node-1", slog.Default())
	defer part(r.Run)()
	deliver(t, ns, api)
	for range 4 {
		r.Eventf(podOf(1), corev1.EventTypeWarning, "BackOff", "Back-off restarting %s", "it")
	}
	proctest.Await(t, bound, "the count", func() bool { api.mu.Lock(); defer api.mu.Unlock(); return api.patches == 3 })
	if len(api.events) != 1 {
		t.Fatalf("%d events, want 1", len(api.events))
	}
	for _, e := range api.events {
		if e.Count != 4 {
			t.Errorf("count is %d, want 4", e.Count)
		}
	}
}

// The spool is bounded: the oldest go first, and are counted.
func TestTheSpoolDropsTheOldest(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.bus.Kill()
	podsync := n.peer(role.Podsync, "0", "", nil)
	r := outbox.NewRecorder(podsync.Client, "node-1", slog.New(slog.DiscardHandler))
	stop := part(r.Run)
	defer func() { stop() }()
	for i := range 1010 {
		r.Event(podOf(i), corev1.EventTypeNormal, "Started", fmt.Sprint(i))
	}
	if got := r.Waiting(); got != 1000 {
		t.Errorf("%d wait, want 1000", got)
	}
	if got := podsync.metric("microlet_outbox_dropped_events_total"); got != 10 {
		t.Errorf("%v counted as dropped, want 10", got)
	}
	api := &apiserver{}
	n.start()
	ns := n.peer(role.NodeStatus, "0", "", nil)
	deliver(t, ns, api)
	took := proctest.Await(t, 2*bound, "1000 events", func() bool { return len(api.delivered()) == 1000 })
	t.Logf("1000 events through the bus in %v", took)
	for i := range 10 {
		if message := fmt.Sprint(i); slices.Contains(api.delivered(), message) {
			t.Errorf("message %s was delivered, want those from 10 on", message)
		}
	}
}

// An Event that the apiserver does not take holds up no other.
func TestARefusedEventHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	api := &apiserver{fail: "Refused"}
	podsync, ns := n.peer(role.Podsync, "0", "", nil), n.peer(role.NodeStatus, "0", "", nil)
	r := outbox.NewRecorder(podsync.Client, "node-1", slog.Default())
	defer part(r.Run)()
	deliver(t, ns, api)
	for i := range 50 {
		r.Event(podOf(i), corev1.EventTypeWarning, "Refused", "a webhook fails")
		r.Event(podOf(i), corev1.EventTypeNormal, "Started", fmt.Sprint(i))
	}
	proctest.Await(t, bound, "the others", func() bool { return len(api.delivered()) == 50 })
	api.set(func() { api.fail = "" })
	proctest.Await(t, bound, "those that were refused", func() bool { return len(api.delivered()) == 100 })
}

// A record comes at once, whatever else its taker asks the bus for meanwhile.
func TestARecordIsNotLostAmongOtherAnswers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	api := &apiserver{}
	podsync, ns := n.peer(role.Podsync, "0", "", nil), n.peer(role.NodeStatus, "0", "", nil)
	others, own := outbox.NewRecorder(podsync.Client, "node-1", slog.Default()), outbox.NewRecorder(ns.Client, "node-1",
		slog.Default())
	defer part(others.Run)()
	defer part(own.Run)()
	deliver(t, ns, api)
	for i := range 200 {
		others.Event(podOf(i), corev1.EventTypeNormal, "Started", fmt.Sprint(i))
		own.Event(podOf(i+1000), corev1.EventTypeNormal, "Started", fmt.Sprint(i+1000))
	}
	proctest.Await(t, bound, "400 events", func() bool { return len(api.delivered()) == 400 })
}
