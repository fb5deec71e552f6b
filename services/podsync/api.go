package podsync

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/proto/role"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// api is what podsync answers on its socket.
type api struct {
	*localPods
	service *service.Service
	workers *worker.Workers
	signs   *signs
}

func registerAPI(s *service.Service, w *worker.Workers, signs *signs, local *localPods) {
	podsyncv1.RegisterPodsyncServiceServer(s.GRPC, &api{localPods: local, service: s, workers: w, signs: signs})
	s.Allow(podsyncv1.PodsyncService_GetHealth_FullMethodName, role.NodeStatus, role.Up)
	s.Allow(podsyncv1.PodsyncService_WakePod_FullMethodName, role.PLEG)
	allowLocalPods(s)
}

// GetHealth tells whether the dispatcher turns.
func (a *api) GetHealth(context.Context, *podsyncv1.GetHealthRequest) (*podsyncv1.GetHealthResponse, error) {
	return &podsyncv1.GetHealthResponse{
		Turns:            a.service.Pulse.Turns(),
		IdleMilliseconds: a.service.Pulse.Idle().Milliseconds(),
	}, nil
}

// WakePod is pleg's hint when the bus is away.
func (a *api) WakePod(_ context.Context, r *podsyncv1.WakePodRequest) (*podsyncv1.WakePodResponse, error) {
	a.signs.hinted()
	if r.GetPodUid() == "" {
		a.workers.WakeAll("pleg")
	} else {
		a.workers.Wake(types.UID(r.GetPodUid()), "pleg")
	}
	return &podsyncv1.WakePodResponse{}, nil
}

// staleRelist is the age from which pleg's last relist proves nothing: its slowest period
// and then some.
const staleRelist = 15 * time.Second

// signs are pleg's signs of life: while it looks at the runtime, podsync need not.
type signs struct {
	mu            sync.Mutex
	turns         uint64
	alive, relist time.Time
}

func newSigns(b *bus.Client) *signs {
	s := &signs{}
	var beats *bus.View[*busv1.Heartbeat]
	beats = bus.Watch[busv1.Heartbeat](b, subject.Heartbeats, string(role.PLEG)+".*", func(key string) {
		if beat, ok := beats.Get(key); ok {
			s.beat(beat.GetTurns())
		}
	})
	bus.Watch[plegv1.Relist](b, subject.Runtime, subject.RuntimeRelist, func(string) { s.relisted() })
	return s
}

// beat takes a heartbeat; one whose loop stands still is no sign.
func (s *signs) beat(turns uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turns != s.turns {
		s.turns, s.alive = turns, time.Now()
	}
}

func (s *signs) relisted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relist = time.Now()
}

func (s *signs) hinted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive = time.Now()
}

// last is when pleg last proved that it looks.
func (s *signs) last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.relist) > staleRelist {
		return s.relist
	}
	return s.alive
}

// listen wakes the workers of the pods that pleg hints at.
func (s *signs) listen(b *bus.Client, w *worker.Workers) {
	b.Subscribe(subject.LifecycleEvents, func(subj string, _ []byte) {
		s.hinted()
		if uid, ok := subject.LifecycleEventPod(subj); ok {
			w.Wake(types.UID(uid), "pleg")
		}
	})
}
