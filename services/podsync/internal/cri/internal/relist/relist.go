// Package relist wakes workers when the runtime has changed.
//
// It reads pleg's hints from a stream of gRPC. If the stream ends, or if pleg's loop or its relists stop, this package
// lists the runtime at once, and then every 5 s until pleg watches the runtime again. It also looks once when a stream
// begins, because pleg keeps no hints while there is no stream. It does not use the bus.
package relist

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/types"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/signal"
)

const (
	// period is the pause between two looks while pleg does not watch the runtime, and gap that between any two.
	period = 5 * time.Second
	gap    = time.Second
	// timeout bounds one look.
	timeout = 10 * time.Second

	// silence is how long pleg's loop may stand still. pleg sends a message every 2 s.
	silence = 5 * time.Second
	// staleRelist is the age from which pleg's last relist proves nothing: its slowest period and then some.
	staleRelist = 15 * time.Second
	// firstPause and lastPause bound the pause between two streams. The connection has a back-off of its own besides.
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	// maxMessage fits as many pods as a message may name.
	maxMessage = 256 << 10
)

// Runtime lists what runs: per pod a digest that changes with the pod's sandboxes and containers.
type Runtime interface {
	Digests(ctx context.Context) (map[types.UID]string, error)
}

// Workers know what was last seen of each pod.
type Workers interface {
	// Seen returns the digest of each pod's last read state.
	Seen() map[types.UID]string
	// Wake makes the pod's worker look again.
	Wake(uid types.UID, reason string)
}

// peer is pleg's API.
type peer struct {
	health grpc_health_v1.HealthClient
	hints  plegv1.PlegServiceClient
}

// watch opens a stream as soon as pleg is there. A pleg of before the stream would report the call as one that podsync
// may not make, so podsync asks first whether pleg has the service.
func (p peer) watch(ctx context.Context) (grpc.ServerStreamingClient[plegv1.WatchPodsResponse], error) {
	name := plegv1.PlegService_ServiceDesc.ServiceName
	ask := &grpc_health_v1.HealthCheckRequest{Service: name}
	if _, err := p.health.Check(ctx, ask, grpc.WaitForReady(true)); err != nil {
		return nil, fmt.Errorf("ask pleg for %s: %w", name, err)
	}
	return p.hints.WatchPods(ctx, &plegv1.WatchPodsRequest{}, grpc.MaxCallRecvMsgSize(maxMessage))
}

// Relister follows pleg, and relists while pleg does not watch the runtime.
type Relister struct {
	runtime Runtime
	workers Workers
	pleg    peer
	log     *slog.Logger
	relists prometheus.Counter
	asked   signal.Signal // for a look

	mu       sync.Mutex
	turns    uint64
	turned   time.Time // when turns changed last; zero since the end of a stream
	relist   uint64
	relisted time.Time // when relist changed last
}

// Start has s follow pleg, and relist while pleg does not watch the runtime.
func Start(ctx context.Context, s *service.Service, runtime Runtime, workers Workers) error {
	conn, err := s.Dial(ctx, role.PLEG)
	if err != nil {
		return err
	}
	pleg := peer{health: grpc_health_v1.NewHealthClient(conn), hints: plegv1.NewPlegServiceClient(conn)}
	r := newRelister(runtime, workers, pleg, s.Log, s.Metrics)
	s.Go("relist", func(ctx context.Context) error {
		defer conn.Close()
		return r.run(ctx)
	})
	return nil
}

func newRelister(runtime Runtime, workers Workers, pleg peer, log *slog.Logger,
	metrics prometheus.Registerer) *Relister {
	relists := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "microlet_podsync_relists_total",
		Help: "Relists that podsync did itself: while pleg did not watch the runtime, and at the beginning of each stream " +
			"of hints.",
	})
	metrics.MustRegister(relists)
	now := time.Now() // pleg gets the time to start
	return &Relister{
		runtime: runtime, workers: workers, pleg: pleg, log: log, relists: relists, asked: signal.New(),
		turned: now, relisted: now,
	}
}

// run follows pleg and looks when it must, until ctx ends.
func (r *Relister) run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { r.follow(ctx) })
	defer following.Wait()
	due, silent, wait := false, false, silence
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.asked:
			due = true
		case <-time.After(wait):
		}
		left := r.watchesFor()
		if silent != (left <= 0) {
			silent = !silent
			r.logSilence(silent)
		}
		if !due && !silent {
			wait = left
			continue
		}
		due = !r.look(ctx)
		if pause.For(ctx, gap) != nil {
			return nil
		}
		wait = period - gap
	}
}

func (r *Relister) logSilence(silent bool) {
	if silent {
		r.log.Warn("pleg does not watch the runtime, relisting here", "period", period)
	} else {
		r.log.Info("pleg watches the runtime")
	}
}

// look wakes the workers of pods that have changed. It reports whether the runtime answered.
func (r *Relister) look(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r.relists.Inc()
	now, err := r.runtime.Digests(ctx)
	if err != nil {
		r.log.Error("relist failed", logkey.Err, err)
		return false
	}
	for uid, seen := range r.workers.Seen() {
		if now[uid] != seen {
			r.workers.Wake(uid, "relist")
		}
	}
	return true
}

// follow reads one stream after the other until ctx ends.
func (r *Relister) follow(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		heard, err := r.read(ctx)
		if heard {
			failures = 0
			r.ended()
			r.asked.Set()
		}
		if failures == 0 && ctx.Err() == nil {
			r.log.Warn("no hints from pleg, will ask for them again", logkey.Err, err)
		}
		pause.Longer(ctx, failures, firstPause, lastPause)
	}
}

// read opens a stream and reads it to its end. It reports whether pleg has sent anything. The
// connection pings, so a pleg that is stopped ends the stream too.
func (r *Relister) read(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.pleg.watch(ctx)
	if err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		heard = true
		r.heard(m)
		for _, uid := range m.GetPodUids() {
			r.workers.Wake(types.UID(uid), "pleg")
		}
		if m.GetAllPods() {
			r.asked.Set()
		}
	}
}

// heard takes what a message proves. A loop that stands still and a relist that failed prove nothing.
func (r *Relister) heard(m *plegv1.WatchPodsResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if m.GetTurns() != r.turns {
		r.turns, r.turned = m.GetTurns(), now
	}
	if m.GetRelist() != 0 && m.GetRelist() != r.relist {
		r.relist, r.relisted = m.GetRelist(), now
	}
}

// ended takes what the end of a stream proves.
func (r *Relister) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turned = time.Time{}
}

// watchesFor is how much longer pleg counts as watching the runtime if it sends nothing more.
func (r *Relister) watchesFor() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(time.Until(r.turned.Add(silence)), time.Until(r.relisted.Add(staleRelist)))
}
