// Package hint sends pleg's hints to podsync: over the bus, or over podsync's socket if the bus is down or hangs.
//
// A published message has no acknowledgement. So a hint counts as sent only if something else has arrived from the
// bus since, which shows that the bus works. Otherwise the hint is sent again by gRPC. A duplicate hint costs
// podsync one extra sync. A lost hint would delay the restart of a container. A hint that the bus takes while podsync
// has no connection to it is lost; podsync looks at the runtime itself after each connect.
package hint

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/signal"
	"github.com/microlet/microlet/services/pleg/internal/relist"
)

// Publisher is the bus, as far as hints need it.
type Publisher interface {
	Publish(subject string, m proto.Message) error
}

// Waker is podsync's own socket.
type Waker interface {
	WakePod(ctx context.Context, in *podsyncv1.WakePodRequest,
		opts ...grpc.CallOption) (*podsyncv1.WakePodResponse, error)
}

var _ Waker = (podsyncv1.PodsyncServiceClient)(nil)

const (
	// margin is how much later than a hint the bus must have spoken to prove that it took the hint.
	margin = 100 * time.Millisecond
	// patience is how long a hint waits for that proof. Four services put a heartbeat each 5 s, so
	// that a bus that lives is seldom silent for so long.
	patience = 3 * time.Second
	// wakeTimeout bounds one WakePod.
	wakeTimeout = 2 * time.Second
	// retry is the pause after a WakePod failed, and how often proofs are checked.
	retry = time.Second
)

// Hinter is a relist.Sink. Make it with New.
type Hinter struct {
	bus     Publisher
	podsync Waker
	log     *slog.Logger
	sent    *prometheus.CounterVec

	mu        sync.Mutex
	queue     []relist.Event
	unproven  map[string]time.Time // pod UID → when it was published
	wake      map[string]struct{}  // pod UIDs to send by gRPC
	spoken    time.Time            // when the bus spoke last
	queued    signal.Signal
	wakeAgain signal.Signal
}

var _ relist.Sink = (*Hinter)(nil)

// New returns a Hinter; Run runs it.
func New(bus Publisher, podsync Waker, log *slog.Logger, metrics prometheus.Registerer) *Hinter {
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_pleg_hints_total",
		Help: "Hints by the way they took (bus, grpc) and the result (ok, error). One hint may take both ways.",
	}, []string{"way", "result"})
	metrics.MustRegister(sent)
	return &Hinter{
		bus: bus, podsync: podsync, log: log, sent: sent,
		unproven: make(map[string]time.Time), wake: make(map[string]struct{}),
		queued: signal.New(), wakeAgain: signal.New(),
	}
}

// Hint takes a hint and returns at once. A pod whose UID cannot be part of a subject was never
// admitted by podsync; it belongs to another program, and no service needs the hint.
func (h *Hinter) Hint(ev relist.Event) {
	if err := subject.ValidToken(ev.PodUID); err != nil {
		h.log.Debug("ignoring a pod that podsync cannot have started", logkey.Err, err)
		return
	}
	h.mu.Lock()
	h.queue = append(h.queue, ev)
	h.mu.Unlock()
	h.queued.Set()
}

// BusSpoke notes that a message came out of the bus.
func (h *Hinter) BusSpoke() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spoken = time.Now()
	for uid, at := range h.unproven {
		if h.spoken.Sub(at) >= margin {
			delete(h.unproven, uid)
		}
	}
}

// Run delivers hints until ctx ends.
func (h *Hinter) Run(ctx context.Context) error {
	var wakes sync.WaitGroup
	defer wakes.Wait()
	wakes.Go(func() { h.runWakes(ctx) })
	ticker := time.NewTicker(retry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.queued:
			h.publish()
		case <-ticker.C:
			h.expireUnproven()
		}
	}
}

func (h *Hinter) publish() {
	h.mu.Lock()
	queue := h.queue
	h.queue = nil
	h.mu.Unlock()
	for _, ev := range queue {
		err := h.bus.Publish(subject.LifecycleEvent(ev.PodUID), &plegv1.LifecycleEvent{
			Type: eventType(ev.Type), PodUid: ev.PodUID, Id: ev.ID,
		})
		h.mu.Lock()
		if err != nil {
			h.sent.WithLabelValues("bus", "error").Inc()
			h.wake[ev.PodUID] = struct{}{}
			h.wakeAgain.Set()
		} else {
			h.sent.WithLabelValues("bus", "ok").Inc()
			h.unproven[ev.PodUID] = time.Now()
		}
		h.mu.Unlock()
	}
}

// expireUnproven takes the hints of which the bus gave no proof for too long to the other way.
func (h *Hinter) expireUnproven() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for uid, at := range h.unproven {
		if now.Sub(at) >= patience {
			delete(h.unproven, uid)
			h.wake[uid] = struct{}{}
			h.wakeAgain.Set()
		}
	}
}

func (h *Hinter) runWakes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wakeAgain:
		}
		for !h.wakeAll(ctx) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(retry):
			}
		}
	}
}

// wakeAll sends podsync every pod that waits for it, and reports whether none is left. What
// podsync refuses stays: while it is away nothing else can be done for the pod anyway.
func (h *Hinter) wakeAll(ctx context.Context) bool {
	h.mu.Lock()
	uids := slices.Sorted(maps.Keys(h.wake))
	h.mu.Unlock()
	for _, uid := range uids {
		call, cancel := context.WithTimeout(ctx, wakeTimeout)
		_, err := h.podsync.WakePod(call, &podsyncv1.WakePodRequest{PodUid: uid})
		cancel()
		if err != nil {
			h.sent.WithLabelValues("grpc", "error").Inc()
			h.log.Warn("wake-up past the bus failed, will retry", logkey.PodUID, uid, logkey.Err, err)
			return false
		}
		h.sent.WithLabelValues("grpc", "ok").Inc()
		h.mu.Lock()
		delete(h.wake, uid)
		h.mu.Unlock()
	}
	return true
}

func eventType(t relist.EventType) plegv1.LifecycleEventType {
	switch t {
	case relist.ContainerStarted:
		return plegv1.LifecycleEventType_LIFECYCLE_EVENT_TYPE_CONTAINER_STARTED
	case relist.ContainerDied:
		return plegv1.LifecycleEventType_LIFECYCLE_EVENT_TYPE_CONTAINER_DIED
	case relist.ContainerRemoved:
		return plegv1.LifecycleEventType_LIFECYCLE_EVENT_TYPE_CONTAINER_REMOVED
	case relist.ContainerChanged:
		return plegv1.LifecycleEventType_LIFECYCLE_EVENT_TYPE_CONTAINER_CHANGED
	default:
		return plegv1.LifecycleEventType_LIFECYCLE_EVENT_TYPE_POD_SYNC
	}
}
