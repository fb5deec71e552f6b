package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/signal"
	"github.com/microlet/microlet/services/internal/tracing"
)

const (
	// keepPeriod is well below the 10 s after which the bus gives a message out again.
	keepPeriod = 3 * time.Second
	// rememberDone is how many delivered Events are known by name, in case their acknowledgement was lost. It is more than
	// can wait for one.
	rememberDone = 4 * subject.OutboxMaxPending
	// rememberSeries is how many Events are known for their repetitions, and as many kinds of them by ten messages each.
	// A node's pods have several hundred. A service may record Events of 16 KiB, so that these are 200 MiB.
	rememberSeries = 1024
	// takeMin and takeMax are the first and the longest pause after the bus gave nothing out.
	takeMin = 50 * time.Millisecond
	takeMax = 2 * time.Second
)

// Sink is the apiserver's part for Events. It returns the errors of client-go.
type Sink interface {
	// Create creates an Event in its namespace and returns it as stored.
	Create(ctx context.Context, event *corev1.Event) (*corev1.Event, error)
	// Patch applies a strategic merge patch to the Event of that name and namespace.
	Patch(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error)
}

// Options say how much the apiserver is asked to take.
type Options struct {
	// QPS is eventRecordQPS: Events per second. 0 means no limit. The kubelet's default is 50.
	QPS float32
	// Burst is eventBurst: how many may go at once. The kubelet's default is 100.
	Burst int
	// Answered returns when the apiserver last answered a request of another kind, by which an apiserver that is away
	// differs from one that hangs over an Event. Nil if it is not known.
	Answered func() time.Time
	// Tracer continues the traces that Events were recorded in; nil records none.
	Tracer *tracing.Tracer
	// Log and Metrics are as elsewhere; Metrics may be nil.
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// message is an Event as the bus gives it out, until it is acknowledged.
type message struct {
	data []byte
	// done acknowledges it, and keep says that it is still worked on.
	done func(ctx context.Context) error
	keep func() error
}

// source is the part of the bus that a Delivery needs.
type source interface {
	WaitConnected(ctx context.Context) error
	// Take returns the next message, or bus.ErrNoRecord when none came for a while.
	Take(ctx context.Context) (message, error)
}

// busSource is the bus's outbox.
type busSource struct{ *bus.Client }

// Take implements source.
func (b busSource) Take(ctx context.Context) (message, error) {
	r, err := b.Client.Take(ctx)
	if err != nil {
		return message{}, err
	}
	return message{data: r.Data, done: r.Done, keep: r.Keep}, nil
}

// Delivery takes Events from the outbox to the apiserver for all services of the node: they share one budget, and one
// correlation, which is the kubelet's except that it remembers less. Events about one object are delivered in their
// order, those of different objects at the same time. An Event that the apiserver does not take waits aside and holds
// up no other.
type Delivery struct {
	source     source
	sink       Sink
	log        *slog.Logger
	correlator *record.EventCorrelator
	limit      flowcontrol.RateLimiter
	calls      chan struct{} // calls under way
	reach      *reach
	answered   func() time.Time
	tracer     *tracing.Tracer
	outcomes   *prometheus.CounterVec
	retries    prometheus.Counter

	work sync.WaitGroup // of Run
	room chan struct{}  // held Events
	wake signal.Signal  // wakes keepHeld when there are some
	done *lru.Cache     // names of Events that are done with

	mu       sync.Mutex
	held     map[string]*item // taken and not done with, by name
	lanes    map[corev1.ObjectReference]*lane
	refused  map[*series]bool // what waits aside, of all lanes
	accepted time.Time        // when the apiserver last accepted an Event
}

// item is one Event that was taken from the outbox.
type item struct {
	name    string
	event   *corev1.Event
	message message // guarded by Delivery.mu: it is replaced when the bus gives it out again
	// recordedIn is the span in which it was recorded.
	recordedIn tracing.Parent
}

// New returns the delivery; Run does it. Only the service that the contract lets read the outbox
// may have one.
func New(c *bus.Client, sink Sink, o Options) (*Delivery, error) {
	return newDelivery(busSource{c}, sink, o)
}

func newDelivery(from source, sink Sink, o Options) (*Delivery, error) {
	if o.QPS < 0 {
		return nil, fmt.Errorf("eventRecordQPS %v: it may not be negative; use 0 for no limit", o.QPS)
	}
	if o.Burst < 0 {
		return nil, fmt.Errorf("eventBurst %d: it may not be negative", o.Burst)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	d := &Delivery{
		source: from, sink: sink, log: o.Log.With(logkey.Component, "outbox"),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{LRUCacheSize: rememberSeries}),
		limit:      flowcontrol.NewFakeAlwaysRateLimiter(),
		calls:      make(chan struct{}, maxCalls), reach: newReach(), answered: o.Answered, tracer: o.Tracer,
		room: make(chan struct{}, subject.OutboxMaxPending), wake: signal.New(), done: lru.New(rememberDone),
		held: map[string]*item{}, lanes: map[corev1.ObjectReference]*lane{}, refused: map[*series]bool{},
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_outbox_delivered_events_total",
			Help: "Kubernetes Events taken from the outbox, by outcome: created, patched, filtered (by the spam filter), " +
				"rejected (by the apiserver), repeated (by the bus, after a lost acknowledgement), malformed, abandoned.",
		}, []string{"outcome"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_outbox_delivery_retries_total",
			Help: "Attempts to deliver a Kubernetes Event that failed and were repeated.",
		}),
	}
	if d.answered == nil {
		d.answered = func() time.Time { return time.Time{} }
	}
	if o.QPS > 0 {
		d.limit = flowcontrol.NewTokenBucketRateLimiter(o.QPS, max(o.Burst, 1))
	}
	if o.Metrics != nil {
		if err := errors.Join(o.Metrics.Register(d.outcomes), o.Metrics.Register(d.retries)); err != nil {
			return nil, fmt.Errorf("register the outbox's metrics: %w", err)
		}
	}
	return d, nil
}

// Run delivers until ctx ends. What is not delivered by then the bus gives out again.
func (d *Delivery) Run(ctx context.Context) error {
	defer d.work.Wait()
	d.work.Go(func() { d.keepHeld(ctx) })
	failures := 0
	for d.awaitRoom(ctx) && d.source.WaitConnected(ctx) == nil {
		m, err := d.source.Take(ctx)
		if err == nil {
			failures = 0
			d.accept(ctx, m)
			continue
		}
		<-d.room
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, bus.ErrNoRecord):
			failures = 0
		default:
			failures++
			d.log.Warn("cannot take events from the outbox", logkey.Err, err)
			pause.Longer(ctx, failures, takeMin, takeMax)
		}
	}
	return nil
}

// awaitRoom takes a place in d.room for one more Event; false when ctx ended before.
func (d *Delivery) awaitRoom(ctx context.Context) bool {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case d.room <- struct{}{}:
			return true
		case <-t.C:
			d.limitRefused() // time alone may allow it
		}
	}
}

// accept gives a message to the lane of the object that its Event is about.
func (d *Delivery) accept(ctx context.Context, m message) {
	var wrapped busv1.KubernetesEvent
	event := &corev1.Event{}
	err := proto.Unmarshal(m.data, &wrapped)
	if err == nil {
		err = event.Unmarshal(wrapped.Event)
	}
	if err != nil {
		d.outcomes.WithLabelValues("malformed").Inc()
		d.log.Error("dropped an event that cannot be decoded", logkey.Err, err)
		d.acknowledge(ctx, m)
		<-d.room
		return
	}
	name := event.Namespace + "/" + event.Name
	d.mu.Lock()
	defer d.mu.Unlock()
	_, done := d.done.Get(name)
	it, held := d.held[name]
	switch {
	case done:
		// Its acknowledgement was lost with the bus. Correlation would count it as a second occurrence.
		d.outcomes.WithLabelValues("repeated").Inc()
		d.work.Go(func() { d.acknowledge(ctx, m); <-d.room })
	case held:
		d.outcomes.WithLabelValues("repeated").Inc()
		it.message = m
		<-d.room
	default:
		it = &item{name: name, event: event, message: m, recordedIn: tracing.ParseParent(wrapped.Traceparent)}
		d.held[name] = it
		d.enqueue(ctx, it)
		d.wake.Set()
	}
}

// finish is done with Events that have their final answer.
func (d *Delivery) finish(ctx context.Context, outcome string, items ...*item) {
	for _, it := range items {
		d.outcomes.WithLabelValues(outcome).Inc()
		d.mu.Lock()
		d.done.Add(it.name, nil)
		delete(d.held, it.name)
		m := it.message
		d.mu.Unlock()
		d.acknowledge(ctx, m)
		<-d.room
	}
}

func (d *Delivery) acknowledge(ctx context.Context, m message) {
	if err := m.done(ctx); err != nil && ctx.Err() == nil {
		// It comes again, and is known by its name.
		d.log.Warn("an event was delivered and the bus does not know it", logkey.Err, err)
	}
}

// keepHeld reports to the bus that held records are being processed, until ctx ends.
func (d *Delivery) keepHeld(ctx context.Context) {
	t := time.NewTicker(keepPeriod)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		messages := d.heldMessages()
		for _, m := range messages {
			// If it fails the message is given out again, at worst to this process after it is done.
			_ = m.keep()
		}
		if len(messages) > 0 {
			continue
		}
		t.Stop() // an idle node has nothing to keep
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		t.Reset(keepPeriod)
	}
}

func (d *Delivery) heldMessages() []message {
	d.mu.Lock()
	defer d.mu.Unlock()
	messages := make([]message, 0, len(d.held))
	for _, it := range d.held {
		messages = append(messages, it.message)
	}
	return messages
}
