package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/util/flowcontrol"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/services/internal/bus"
)

const (
	// callTimeout bounds one call to the apiserver.
	callTimeout = 10 * time.Second
	// keepPeriod is well below the 10 s after which the bus gives a record out again.
	keepPeriod = 3 * time.Second
	// giveUpAfter bounds how long one Event that the apiserver answers with a server error holds up the
	// others. An apiserver that does not answer at all is waited for without bound.
	giveUpAfter = 10 * time.Minute
	deliverMax  = 5 * time.Second
)

// Sink is the apiserver's part for Events. It returns the errors of client-go.
type Sink interface {
	// Create creates an Event in its namespace and returns it as stored.
	Create(ctx context.Context, event *corev1.Event) (*corev1.Event, error)
	// Patch applies a strategic merge patch to the Event of that name and namespace.
	Patch(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error)
}

// DeliveryOptions say how much the apiserver is asked to take.
type DeliveryOptions struct {
	// QPS is eventRecordQPS: Events per second. 0 means no limit. The kubelet's default is 50.
	QPS float32
	// Burst is eventBurst: how many may go at once. The kubelet's default is 100.
	Burst int
	// Log and Metrics are as elsewhere; Metrics may be nil.
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Delivery takes Events from the outbox to the apiserver, one after the other, for all services of the
// node: they share one budget, and one correlation as the kubelet's, with its defaults.
type Delivery struct {
	bus        *bus.Client
	sink       Sink
	log        *slog.Logger
	correlator *record.EventCorrelator
	limit      flowcontrol.RateLimiter
	outcomes   *prometheus.CounterVec
	retries    prometheus.Counter
	last       string // the Event that was delivered last
}

// NewDelivery returns the delivery; Run does it. Only the service that the contract lets read the outbox
// may have one.
func NewDelivery(c *bus.Client, sink Sink, o DeliveryOptions) (*Delivery, error) {
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
		bus: c, sink: sink, log: o.Log.With("component", "outbox"),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		limit:      flowcontrol.NewFakeAlwaysRateLimiter(),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_outbox_delivered_events_total",
			Help: "Kubernetes Events taken from the outbox, by outcome: created, patched, filtered (by the spam filter), rejected (by the apiserver), repeated (by the bus, after a lost acknowledgement), malformed, abandoned.",
		}, []string{"outcome"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_outbox_delivery_retries_total", Help: "Attempts to deliver a Kubernetes Event that failed and were repeated.",
		}),
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

// Run delivers until ctx ends.
func (d *Delivery) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		if d.bus.WaitConnected(ctx) != nil {
			break
		}
		r, err := d.bus.Take(ctx)
		switch {
		case errors.Is(err, bus.ErrNoRecord):
			failures = 0
			continue
		case err != nil && ctx.Err() != nil:
			continue
		case err != nil:
			failures++
			d.log.Warn("cannot take events from the outbox", "error", err)
			pause(ctx, failures)
			continue
		}
		failures = 0
		if !d.deliver(ctx, r) {
			break // ctx ended; the record is given out again
		}
		if err := r.Done(ctx); err != nil && ctx.Err() == nil {
			// It comes again, and the apiserver refuses it as known.
			d.log.Warn("an event was delivered and the bus does not know it", "error", err)
		}
	}
	return nil
}

// deliver returns true when the apiserver has accepted the record or refused it for good.
func (d *Delivery) deliver(ctx context.Context, r *bus.Record) bool {
	var wrapped busv1.KubernetesEvent
	event := &corev1.Event{}
	err := proto.Unmarshal(r.Data, &wrapped)
	if err == nil {
		err = event.Unmarshal(wrapped.Event)
	}
	if err != nil {
		d.outcomes.WithLabelValues("malformed").Inc()
		d.log.Error("dropped an event that cannot be decoded", "error", err)
		return true
	}
	// Only one record is given out at a time, so only the last can come twice: its acknowledgement was
	// lost with the bus. Correlation would count it as a second occurrence.
	name := event.Namespace + "/" + event.Name
	if name == d.last {
		d.outcomes.WithLabelValues("repeated").Inc()
		return true
	}
	result, err := d.correlator.EventCorrelate(event)
	if err != nil {
		d.log.Warn("an event cannot be correlated, and is created as it is", "error", err)
		result = &record.EventCorrelateResult{Event: event}
	}
	if result.Skip {
		d.outcomes.WithLabelValues("filtered").Inc()
		d.last = name
		return true
	}
	stop := d.keep(ctx, r)
	defer stop()
	if err := d.limit.Wait(ctx); err != nil {
		return false
	}
	if !d.persist(ctx, result) {
		return false
	}
	d.last = name
	return true
}

// keep tells the bus that the record is worked on, until stop is called.
func (d *Delivery) keep(ctx context.Context, r *bus.Record) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(keepPeriod)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				// If it fails the record is given out again, at worst to this process after it is done.
				_ = r.Keep()
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// persist writes until there is a final answer; false when ctx ended before.
func (d *Delivery) persist(ctx context.Context, result *record.EventCorrelateResult) bool {
	event := result.Event
	about := event.InvolvedObject.Namespace + "/" + event.InvolvedObject.Name + " " + event.Reason
	var refusing time.Time
	for attempt := 1; ; attempt++ {
		stored, outcome, err := d.write(ctx, result)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			d.correlator.UpdateState(stored)
			d.outcomes.WithLabelValues(outcome).Inc()
			return true
		}
		if final(err) {
			if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				d.log.Debug("the apiserver refused an event", "event", about, "error", err)
			} else {
				d.log.Error("the apiserver refused an event", "event", about, "error", err)
			}
			d.outcomes.WithLabelValues("rejected").Inc()
			return true
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			if refusing.IsZero() {
				refusing = time.Now()
			}
			if time.Since(refusing) > giveUpAfter {
				d.log.Error("abandoned an event that the apiserver cannot take", "event", about, "error", err)
				d.outcomes.WithLabelValues("abandoned").Inc()
				return true
			}
		} else {
			refusing = time.Time{}
		}
		d.retries.Inc()
		d.log.Warn("an event could not be delivered and is tried again", "event", about, "attempt", attempt, "error", err)
		t := time.NewTimer(min(retryMin<<min(attempt-1, 10), deliverMax))
		select {
		case <-ctx.Done():
			t.Stop()
			return false
		case <-t.C:
		}
	}
}

// write makes one attempt: a patch of the count if the Event was seen before, else a new one.
func (d *Delivery) write(ctx context.Context, result *record.EventCorrelateResult) (*corev1.Event, string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if result.Event.Count > 1 && result.Patch != nil {
		stored, err := d.sink.Patch(ctx, result.Event, result.Patch)
		if !util.IsKeyNotFoundError(err) {
			return stored, "patched", err
		}
		// It has expired at the apiserver.
	}
	event := result.Event.DeepCopy()
	event.ResourceVersion = ""
	stored, err := d.sink.Create(ctx, event)
	return stored, "created", err
}

// final says whether trying again cannot help: the apiserver has understood the request and said no. It
// may come to its senses after a server error, when it has less to do, or when the credentials are renewed.
func final(err error) bool {
	var construction *restclient.RequestConstructionError
	if errors.As(err, &construction) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}
