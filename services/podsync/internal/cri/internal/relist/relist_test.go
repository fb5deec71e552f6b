package relist

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
)

// node is a runtime whose pods change, and workers that have seen them as they were.
type node struct {
	mu    sync.Mutex
	now   map[types.UID]string
	seen  map[types.UID]string
	fails bool
	hangs chan struct{}
	looks []time.Duration // when, since the beginning
	woken map[types.UID][]string
	began time.Time
}

func (n *node) Digests(ctx context.Context) (map[types.UID]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks = append(n.looks, time.Since(n.began))
	if hangs := n.hangs; hangs != nil {
		n.mu.Unlock()
		select {
		case <-hangs:
		case <-ctx.Done():
		}
		n.mu.Lock()
	}
	if n.fails || ctx.Err() != nil {
		return nil, errors.New("no answer")
	}
	return maps.Clone(n.now), nil
}

func (n *node) Seen() map[types.UID]string { return n.seen }

func (n *node) Wake(uid types.UID, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.woken[uid] = append(n.woken[uid], reason)
}

// looked takes the times of the looks.
func (n *node) looked() []time.Duration {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	looks := n.looks
	n.looks = nil
	return looks
}

// fakePLEG serves a stream while it is up.
type fakePLEG struct {
	grpc_health_v1.HealthClient
	mu      sync.Mutex
	up      chan struct{} // closed while it is up
	older   bool          // than the stream of hints
	streams []*stream
	asked   int
}

// stream is one of podsync's.
type stream struct {
	grpc.ClientStream
	ctx      context.Context
	messages chan *plegv1.WatchPodsResponse
	end      chan struct{}
}

func (p *fakePLEG) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest,
	_ ...grpc.CallOption) (*grpc_health_v1.HealthCheckResponse, error) {
	p.mu.Lock()
	p.asked++
	up := p.up
	p.mu.Unlock()
	select {
	case <-up:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.older || r.GetService() != "microlet.pleg.v1.PlegService" {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	return &grpc_health_v1.HealthCheckResponse{}, ctx.Err()
}

func (p *fakePLEG) WatchPods(ctx context.Context, _ *plegv1.WatchPodsRequest,
	_ ...grpc.CallOption) (grpc.ServerStreamingClient[plegv1.WatchPodsResponse], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &stream{ctx: ctx, messages: make(chan *plegv1.WatchPodsResponse), end: make(chan struct{})}
	p.streams = append(p.streams, s)
	return s, nil
}

func (s *stream) Recv() (*plegv1.WatchPodsResponse, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-s.end:
		return nil, io.EOF
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	}
}

// scene is a Relister beside a pleg and a runtime.
type scene struct {
	*node
	pleg  *fakePLEG
	turns uint64
}

// run runs f beside a relister, before pleg is up.
func run(t *testing.T, f func(t *testing.T, s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{
			node: &node{
				now:  map[types.UID]string{"same": "a", "exited": "c"},
				seen: map[types.UID]string{"same": "a", "exited": "b", "gone": "d"}, woken: map[types.UID][]string{},
				began: time.Now(),
			},
			pleg: &fakePLEG{up: make(chan struct{})},
		}
		r := newRelister(s, s, peer{health: s.pleg, hints: s.pleg}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.run(ctx) }()
		synctest.Wait()
		f(t, s)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// start has pleg come up.
func (s *scene) start() {
	close(s.pleg.up)
	synctest.Wait()
}

// stream is podsync's newest stream.
func (s *scene) stream() *stream {
	synctest.Wait()
	s.pleg.mu.Lock()
	defer s.pleg.mu.Unlock()
	return s.pleg.streams[len(s.pleg.streams)-1]
}

// send sends a message.
func (s *scene) send(m *plegv1.WatchPodsResponse) {
	at := s.stream()
	select {
	case at.messages <- m:
	case <-at.ctx.Done():
	}
	synctest.Wait()
}

// watches has pleg watch the runtime for a while: its loop turns, and its relists succeed.
func (s *scene) watches(span time.Duration) {
	for end := time.Now().Add(span); time.Now().Before(end); {
		s.turns++
		s.send(&plegv1.WatchPodsResponse{Turns: s.turns, Relist: s.turns})
		time.Sleep(2 * time.Second)
	}
}

func TestLooksOnlyWhilePlegDoesNotWatch(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		time.Sleep(time.Second)
		s.start()
		s.send(&plegv1.WatchPodsResponse{AllPods: true, Turns: 1, Relist: 1})
		if got := s.looked(); !slices.Equal(got, []time.Duration{time.Second}) {
			t.Errorf("looked at %v, want once when the stream begins", got)
		}
		if len(s.woken) != 2 || s.woken["exited"] == nil || s.woken["gone"] == nil {
			t.Errorf("woke %v, want what has changed", s.woken)
		}
		s.watches(time.Minute)
		if got := s.looked(); len(got) > 0 {
			t.Errorf("looked at %v beside a pleg that watches", got)
		}
	})
}

func TestAHintWakesAtOnce(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.start()
		s.hangs = make(chan struct{})
		s.send(&plegv1.WatchPodsResponse{AllPods: true}) // the look that it asks for hangs
		s.send(&plegv1.WatchPodsResponse{PodUids: []string{"a", "b"}})
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Equal(s.woken["a"], []string{"pleg"}) || !slices.Equal(s.woken["b"], []string{"pleg"}) {
			t.Errorf("woke %v while a look hangs", s.woken)
		}
	})
}

// The end of the stream is pleg's death, so podsync does not wait for its silence.
func TestTheEndOfAStreamIsALook(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.start()
		s.watches(10 * time.Second)
		s.pleg.up = make(chan struct{})
		close(s.stream().end)
		if got := s.looked(); !slices.Equal(got, []time.Duration{10 * time.Second}) {
			t.Fatalf("looked at %v, want at 10 s, when the stream ended", got)
		}
		time.Sleep(12 * time.Second)
		if got := s.looked(); !slices.Equal(got, []time.Duration{15 * time.Second, 20 * time.Second}) {
			t.Errorf("without pleg: looked at %v, want at 15 and 20 s", got)
		}
		s.start()
		s.send(&plegv1.WatchPodsResponse{AllPods: true, Turns: 1, Relist: 1})
		if got := s.looked(); !slices.Equal(got, []time.Duration{22 * time.Second}) {
			t.Errorf("with a new pleg: looked at %v, want at 22 s", got)
		}
		s.watches(time.Minute)
		if got := s.looked(); len(got) > 0 {
			t.Errorf("then looked at %v", got)
		}
	})
}

// A pleg that is not there when podsync starts has the time to start.
func TestWithoutAPleg(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		time.Sleep(16 * time.Second)
		if got := s.looked(); !slices.Equal(got, []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second}) {
			t.Errorf("looked at %v, want at 5, 10 and 15 s", got)
		}
	})
}

// A pleg that is stopped sends nothing, and its stream does not end for a while.
func TestAPlegThatHangs(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.start()
		s.watches(10 * time.Second) // the last message is of 8 s
		time.Sleep(9 * time.Second)
		if got := s.looked(); !slices.Equal(got, []time.Duration{13 * time.Second, 18 * time.Second}) {
			t.Errorf("looked at %v, want at 13 and 18 s", got)
		}
		s.watches(time.Minute)
		if got := s.looked(); len(got) != 0 {
			t.Errorf("a pleg that goes on: looked at %v", got)
		}
	})
}

// A pleg whose loop stands still sends messages, and none of them is a proof.
func TestALoopThatStandsStill(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.start()
		s.watches(10 * time.Second)
		for i := range uint64(5) {
			s.send(&plegv1.WatchPodsResponse{Turns: s.turns, Relist: 100 + i, PodUids: []string{"a"}})
			time.Sleep(2 * time.Second)
		}
		if got := s.looked(); !slices.Equal(got, []time.Duration{13 * time.Second, 18 * time.Second}) {
			t.Errorf("looked at %v, want at 13 and 18 s", got)
		}
		if got := len(s.woken["a"]); got != 5 {
			t.Errorf("%d of 5 hints have woken", got)
		}
	})
}

// A pleg whose relists fail has not looked since.
func TestAFailedRelistProvesNothing(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.start()
		s.watches(10 * time.Second)
		relist := s.turns
		for range 10 {
			s.turns++
			s.send(&plegv1.WatchPodsResponse{Turns: s.turns, Relist: relist})
			time.Sleep(2 * time.Second)
		}
		if got := s.looked(); !slices.Equal(got, []time.Duration{23 * time.Second, 28 * time.Second}) {
			t.Errorf("looked at %v, want 15 s after the last relist, which was at 8 s, and 5 s later", got)
		}
		s.watches(time.Minute)
		if got := s.looked(); len(got) > 0 {
			t.Errorf("looked at %v after a relist succeeded", got)
		}
	})
}

// So has one that has never relisted.
func TestAPlegThatNeverRelists(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.start()
		for range 11 {
			s.turns++
			s.send(&plegv1.WatchPodsResponse{Turns: s.turns})
			time.Sleep(2 * time.Second)
		}
		if got := s.looked(); !slices.Equal(got, []time.Duration{15 * time.Second, 20 * time.Second}) {
			t.Errorf("looked at %v, want at 15 and 20 s", got)
		}
	})
}

func TestARuntimeThatDoesNotAnswerWakesNoPod(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.fails = true
		s.start()
		s.send(&plegv1.WatchPodsResponse{AllPods: true, Turns: 1, Relist: 1})
		s.watches(8 * time.Second)
		if got := s.looked(); !slices.Equal(got, []time.Duration{0, 5 * time.Second}) {
			t.Errorf("looked at %v, want again 5 s after a look that failed", got)
		}
		if len(s.woken) != 0 {
			t.Errorf("woke %v: an unanswered list is not an empty one", s.woken)
		}
	})
}

// A pleg of before the stream would report a call of a method that it does not have as one that podsync may not make.
// podsync asks it every 5 s whether it has the service, for pleg may be upgraded.
func TestAnOlderPleg(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.pleg.older = true
		s.start()
		time.Sleep(61 * time.Second)
		if got := s.looked(); len(got) != 12 {
			t.Errorf("looked %d times in a minute, want 12", len(got))
		}
		s.pleg.mu.Lock()
		defer s.pleg.mu.Unlock()
		if s.pleg.asked > 20 || len(s.pleg.streams) > 0 {
			t.Errorf("asked %d times in a minute, and for %d streams", s.pleg.asked, len(s.pleg.streams))
		}
	})
}

// A pleg whose streams end at once costs the runtime one look a second.
func TestStreamsThatEndAtOnce(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.start()
		for time.Since(s.began) < 20*time.Second {
			s.send(&plegv1.WatchPodsResponse{AllPods: true, Turns: 1, Relist: 1})
			close(s.stream().end)
			time.Sleep(firstPause)
		}
		if got := s.looked(); len(got) < 15 || len(got) > 21 {
			t.Errorf("looked %d times in 20 s, want about one a second", len(got))
		}
	})
}
