package hint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	"github.com/microlet/microlet/services/pleg/internal/relist"
)

// fakeBus remembers what was published. It may be away, or hang until it is released.
type fakeBus struct {
	mu        sync.Mutex
	err       error
	hangs     chan struct{}
	published []string
}

func (b *fakeBus) Publish(subject string, _ proto.Message) error {
	b.mu.Lock()
	hangs := b.hangs
	b.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.published = append(b.published, subject)
	}
	return b.err
}

func (b *fakeBus) set(err error, hangs chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err, b.hangs = err, hangs
}

// podsync is a stream of podsync's.
type podsync struct {
	grpc.ServerStream
	ctx   context.Context
	hangs chan struct{} // nil: it reads at once
	ended chan error

	mu  sync.Mutex
	got []*plegv1.WatchPodsResponse
}

func (p *podsync) Context() context.Context { return p.ctx }

func (p *podsync) Send(m *plegv1.WatchPodsResponse) error {
	if p.hangs != nil {
		<-p.hangs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, m)
	return nil
}

// take waits until nothing moves, and returns what came since the last call.
func (p *podsync) take() []*plegv1.WatchPodsResponse {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

// pods takes the pods that were named, each once.
func (p *podsync) pods() (uids []string) {
	for _, m := range p.take() {
		uids = append(uids, m.GetPodUids()...)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// pleg is a Hinter that runs.
type pleg struct {
	*Hinter
	t     *testing.T
	bus   *fakeBus
	turns uint64
	stop  func()
}

func run(t *testing.T, f func(t *testing.T, p *pleg)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pleg{t: t, bus: &fakeBus{}}
		p.Hinter = New(p.bus, func() uint64 { return p.turns }, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		p.stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		f(t, p)
		p.stop()
	})
}

// open has podsync open a stream, which ends with ctx.
func (p *pleg) open(ctx context.Context, hangs chan struct{}) *podsync {
	s := &podsync{ctx: ctx, hangs: hangs, ended: make(chan error, 1)}
	go func() { s.ended <- p.WatchPods(&plegv1.WatchPodsRequest{}, s) }()
	synctest.Wait()
	return s
}

func (p *pleg) hint(uid string) {
	p.Hint(relist.Event{Type: relist.ContainerDied, PodUID: uid, ID: "c"})
}

func TestAHintIsSentAtOnceByBothWays(t *testing.T) {
	run(t, func(t *testing.T, p *pleg) {
		s := p.open(t.Context(), nil)
		if got := s.take(); len(got) != 1 || !got[0].GetAllPods() {
			t.Errorf("a stream begins with %v, want a hint at all pods", got)
		}
		p.hint("a")
		if got := s.take(); len(got) != 1 || !slices.Equal(got[0].GetPodUids(), []string{"a"}) || got[0].GetAllPods() {
			t.Errorf("sent %v, want a hint at a alone", got)
		}
		p.bus.mu.Lock()
		defer p.bus.mu.Unlock()
		if want := []string{"microlet.evt.pleg.lifecycle.a"}; !slices.Equal(p.bus.published, want) {
			t.Errorf("published %v, want %v", p.bus.published, want)
		}
	})
}

// Podsync judges by the counts whether pleg watches the runtime, so they come whether there are hints or not.
func TestTheCountsAreSentEveryTwoSeconds(t *testing.T) {
	run(t, func(t *testing.T, p *pleg) {
		s := p.open(t.Context(), nil)
		s.take()
		for i := range uint64(5) {
			p.turns = i + 10
			p.Relisted(i + 1)
			time.Sleep(pulse)
			got := s.take()
			if len(got) != 1 || got[0].GetTurns() != i+10 || got[0].GetRelist() != i+1 || len(got[0].GetPodUids()) > 0 {
				t.Errorf("after %s: %v, want one message with turns %d and relist %d", pulse, got, i+10, i+1)
			}
		}
	})
}

func TestABusThatIsAwayOrHangsDelaysNoHint(t *testing.T) {
	run(t, func(t *testing.T, p *pleg) {
		s := p.open(t.Context(), nil)
		s.take()
		p.bus.set(errors.New("away"), nil)
		p.hint("a")
		if got := s.pods(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("while the bus is away: hints at %v, want a", got)
		}
		hangs := make(chan struct{})
		p.bus.set(nil, hangs)
		time.Sleep(retry) // so that the hint at a hangs too
		for i := range 3 * backlog {
			p.hint(fmt.Sprint(i % 100))
		}
		if got := s.pods(); len(got) != 100 {
			t.Errorf("while the bus hangs: hints at %d pods, want 100", len(got))
		}
		if n := len(p.publishes); n != backlog {
			t.Errorf("%d hints wait for the bus, want %d", n, backlog)
		}
		close(hangs)
		synctest.Wait()
		p.bus.mu.Lock()
		defer p.bus.mu.Unlock()
		if n := len(p.bus.published); n != backlog+1 || p.bus.published[0] != "microlet.evt.pleg.lifecycle.a" {
			t.Errorf("published %d hints when the bus was back, want the %d that waited and a", n, backlog)
		}
	})
}

// A podsync that does not read costs pleg one entry a pod, and no more than a message names.
func TestWhatWaitsForPodsyncIsBounded(t *testing.T) {
	run(t, func(t *testing.T, p *pleg) {
		hangs := make(chan struct{})
		s := p.open(t.Context(), hangs)
		for i := range 10 * plegv1.MaxWatchedPods {
			p.hint(fmt.Sprint(i))
		}
		if n := len(p.stream.pods); n != plegv1.MaxWatchedPods {
			t.Errorf("%d pods wait, want %d", n, plegv1.MaxWatchedPods)
		}
		close(hangs)
		got := s.take()
		if len(got) != 2 || len(got[1].GetPodUids()) != plegv1.MaxWatchedPods || !got[1].GetAllPods() {
			t.Errorf("got %d messages, want two, and in the last a hint at all pods", len(got))
		}
		p.hint("a")
		if got := s.take(); len(got) != 1 || got[0].GetAllPods() || len(got[0].GetPodUids()) != 1 {
			t.Errorf("then %v, want a hint at a alone", got)
		}
	})
}

// Podsync restarts, so it has two streams for a moment. The newer one counts, even if the older one hangs.
func TestTheNewestStreamCounts(t *testing.T) {
	run(t, func(t *testing.T, p *pleg) {
		old := p.open(t.Context(), nil)
		hangs := make(chan struct{})
		stuck := p.open(t.Context(), hangs)
		if err := <-old.ended; status.Code(err) != codes.Aborted {
			t.Errorf("the older stream ends with %v", err)
		}
		newest := p.open(t.Context(), nil)
		p.hint("a")
		if got := newest.take(); len(got) != 2 || !got[0].GetAllPods() || !slices.Equal(got[1].GetPodUids(), []string{"a"}) {
			t.Errorf("the newest stream gets %v", got)
		}
		close(hangs)
		if err := <-stuck.ended; status.Code(err) != codes.Aborted {
			t.Errorf("the stream that hung ends with %v", err)
		}
		p.hint("b")
		if got := newest.pods(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("the newest stream gets hints at %v, want b", got)
		}
	})
}

func TestAStreamEndsWithPodsyncAndWithPleg(t *testing.T) {
	run(t, func(t *testing.T, p *pleg) {
		ctx, cancel := context.WithCancel(t.Context())
		s := p.open(ctx, nil)
		cancel()
		if err := <-s.ended; status.Code(err) != codes.Canceled {
			t.Errorf("without podsync the stream ends with %v", err)
		}
		p.hint("a")
		if got := testutil.ToFloat64(p.hints.WithLabelValues("grpc", "error")); got != 1 {
			t.Errorf("%v hints have found no stream, want 1", got)
		}
		s = p.open(t.Context(), nil)
		if got := s.take(); len(got) != 1 || !got[0].GetAllPods() {
			t.Errorf("the next stream begins with %v, want a hint at all pods", got)
		}
		p.stop()
		if err := <-s.ended; status.Code(err) != codes.Unavailable {
			t.Errorf("without pleg the stream ends with %v", err)
		}
	})
}

func TestForeignPodIsIgnored(t *testing.T) {
	run(t, func(t *testing.T, p *pleg) {
		s := p.open(t.Context(), nil)
		p.hint("a.*.>")
		time.Sleep(time.Minute)
		if got := s.pods(); len(got)+len(p.bus.published) != 0 {
			t.Errorf("hints at %v, published %v, want nothing", got, p.bus.published)
		}
	})
}
