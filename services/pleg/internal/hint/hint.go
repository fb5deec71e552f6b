// Package hint gives pleg's hints to podsync.
//
// podsync opens a stream and reads the hints from it. The end of the stream shows podsync at once that pleg has ended.
// The messages of the stream show that pleg's loop turns and that its relists succeed; there is one every 2 s if there
// is no hint. Each stream begins with the hint that any pod may have changed, so pleg keeps no hints while podsync has
// no stream.
//
// Each hint is also published on the bus, for other readers. A podsync that reads the stream does not depend on that.
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/signal"
	"github.com/microlet/microlet/services/pleg/internal/relist"
)

const (
	// pulse is the longest pause between two messages of a stream.
	pulse = 2 * time.Second
	// backlog is how many hints may wait for the bus, and retry the pause after the bus has not taken one.
	backlog = 1000
	retry   = time.Second
)

// Publisher is the bus, as far as hints need it.
type Publisher interface {
	Publish(subject string, m proto.Message) error
}

// Hinter is a relist.Sink, and serves podsync. Make it with New.
type Hinter struct {
	plegv1.UnimplementedPlegServiceServer
	bus       Publisher
	turns     func() uint64
	log       *slog.Logger
	hints     *prometheus.CounterVec
	publishes chan relist.Event
	stopped   chan struct{} // closed when Run ends

	mu     sync.Mutex
	relist uint64  // generation of the last relist that succeeded
	stream *stream // nil if podsync has none
}

// stream is one call of WatchPods. Its fields are guarded by Hinter.mu.
type stream struct {
	changed signal.Signal // there is something to send
	pods    map[string]struct{}
	all     bool
}

var (
	_ relist.Sink              = (*Hinter)(nil)
	_ plegv1.PlegServiceServer = (*Hinter)(nil)
)

// New returns a Hinter; Run runs it. turns counts the iterations of pleg's main loop.
func New(bus Publisher, turns func() uint64, log *slog.Logger, metrics prometheus.Registerer) *Hinter {
	hints := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_pleg_hints_total",
		Help: "Hints by way (grpc is podsync's stream, bus) and result (ok, error). Each hint takes both ways. A hint that " +
			"finds no stream is an error.",
	}, []string{"way", "result"})
	metrics.MustRegister(hints)
	return &Hinter{
		bus: bus, turns: turns, log: log, hints: hints,
		publishes: make(chan relist.Event, backlog), stopped: make(chan struct{}),
	}
}

// Hint takes a hint and returns at once. podsync admits no pod whose UID cannot be part of a subject, so such a pod
// needs no hint.
func (h *Hinter) Hint(ev relist.Event) {
	if err := subject.ValidToken(ev.PodUID); err != nil {
		h.log.Debug("ignoring a pod that podsync cannot have started", logkey.Err, err)
		return
	}
	h.count("grpc", h.add(ev.PodUID))
	select {
	case h.publishes <- ev:
	default:
		h.count("bus", false)
	}
}

// Relisted notes the generation of a relist that has succeeded.
func (h *Hinter) Relisted(generation uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.relist = generation
}

// Run publishes hints until ctx ends, and then ends the stream.
func (h *Hinter) Run(ctx context.Context) error {
	defer close(h.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-h.publishes:
			// A podsync that knows no stream needs the hints of pleg's first relist, which may be before the bus is there.
			for !h.publish(ev) && pause.For(ctx, retry) == nil {
			}
		}
	}
}

func (h *Hinter) publish(ev relist.Event) bool {
	err := h.bus.Publish(subject.LifecycleEvent(ev.PodUID), &plegv1.LifecycleEvent{
		Type: eventType(ev.Type), PodUid: ev.PodUID, Id: ev.ID,
	})
	h.count("bus", err == nil)
	return err == nil
}

// WatchPods implements plegv1.PlegServiceServer.
func (h *Hinter) WatchPods(_ *plegv1.WatchPodsRequest,
	out grpc.ServerStreamingServer[plegv1.WatchPodsResponse]) error {
	s := h.open()
	defer h.close(s)
	h.log.Info("podsync reads the hints")
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	for {
		m := h.take(s)
		if m == nil {
			return status.Error(codes.Aborted, "there is a newer stream")
		}
		if err := out.Send(m); err != nil {
			return err
		}
		select {
		case <-out.Context().Done():
			h.log.Info("podsync no longer reads the hints")
			return status.FromContextError(out.Context().Err()).Err()
		case <-h.stopped:
			return status.Error(codes.Unavailable, "pleg stops")
		case <-s.changed:
		case <-ticker.C:
		}
	}
}

// open begins a stream and ends the one before.
func (h *Hinter) open() *stream {
	s := &stream{changed: signal.New(), pods: map[string]struct{}{}, all: true}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stream != nil {
		h.stream.changed.Set()
	}
	h.stream = s
	return s
}

func (h *Hinter) close(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stream == s {
		h.stream = nil
	}
}

// add gives a pod to the stream, and reports whether there is one.
func (h *Hinter) add(uid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stream
	switch {
	case s == nil:
		return false
	case len(s.pods) < plegv1.MaxWatchedPods:
		s.pods[uid] = struct{}{}
	default:
		s.all = true
	}
	s.changed.Set()
	return true
}

// take returns the next message of a stream; nil if there is a newer stream.
func (h *Hinter) take(s *stream) *plegv1.WatchPodsResponse {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stream != s {
		return nil
	}
	m := &plegv1.WatchPodsResponse{
		PodUids: slices.Sorted(maps.Keys(s.pods)), AllPods: s.all, Turns: h.turns(), Relist: h.relist,
	}
	clear(s.pods)
	s.all = false
	return m
}

func (h *Hinter) count(way string, ok bool) {
	result := "ok"
	if !ok {
		result = "error"
	}
	h.hints.WithLabelValues(way, result).Inc()
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
