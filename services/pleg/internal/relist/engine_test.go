package relist

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fakeRuntime lists what the test put in, streams what the test says, and can hang, fail and stall.
type fakeRuntime struct {
	mu       sync.Mutex
	items    Snapshot
	hang     bool
	listErr  error
	noStream error
	stalled  bool
	streams  int
	lists    []time.Time
	events   chan StreamEvent
	cut      chan error
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{items: Snapshot{}, events: make(chan StreamEvent), cut: make(chan error)}
}

func (f *fakeRuntime) List(ctx context.Context) (Snapshot, error) {
	f.mu.Lock()
	f.lists = append(f.lists, time.Now())
	hang, err := f.hang, f.listErr
	s := Snapshot{}
	for uid, items := range f.items {
		for id, item := range items {
			s.Add(uid, id, item)
		}
	}
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s, err
}

func (f *fakeRuntime) Stream(ctx context.Context, opened func(), event func(StreamEvent)) error {
	f.mu.Lock()
	f.streams++
	err := f.noStream
	f.mu.Unlock()
	if err != nil {
		return err
	}
	opened()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-f.cut:
			return err
		case ev := <-f.events:
			event(ev)
		}
	}
}

// set changes a container's state and, unless the stream has stalled, sends the event.
func (f *fakeRuntime) set(uid, id string, state State) {
	f.mu.Lock()
	item := f.items[uid][id]
	item.State, item.Name = state, "c"
	f.items.Add(uid, id, item)
	streams := !f.stalled && f.noStream == nil
	f.mu.Unlock()
	if !streams {
		return
	}
	switch state {
	case Running:
		f.events <- StreamEvent{Kind: StreamStarted, ID: id, PodUID: uid, Created: time.Now()}
	case Exited:
		f.events <- StreamEvent{Kind: StreamStopped, ID: id, PodUID: uid, Created: time.Now()}
	}
}

func (f *fakeRuntime) change(g func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g()
}

// opened fails the test unless the stream was opened as often as it should be.
func (f *fakeRuntime) opened(t *testing.T, want int, why string) {
	t.Helper()
	f.change(func() {
		if f.streams != want {
			t.Errorf("the stream was opened %d times, want %d: %s", f.streams, want, why)
		}
	})
}

type timedEvent struct {
	Event
	at time.Time
}

// rig runs an engine over a fake runtime in virtual time.
type rig struct {
	*fakeRuntime
	engine  *Engine
	mu      sync.Mutex
	hints   []timedEvent
	reports []Report
	turns   []time.Time
}

func start(t *testing.T, f *fakeRuntime) *rig {
	t.Helper()
	r := &rig{fakeRuntime: f}
	r.engine = New(Options{
		Lister: f, Streamer: f, Sink: r, Metrics: prometheus.NewRegistry(),
		Reported: func(rep Report) { r.mu.Lock(); defer r.mu.Unlock(); r.reports = append(r.reports, rep) },
		Turned:   func() { r.mu.Lock(); defer r.mu.Unlock(); r.turns = append(r.turns, time.Now()) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return r
}

// streaming starts an engine that has a stream, one running container and the slowest relist.
func streaming(t *testing.T) (*fakeRuntime, *rig) {
	t.Helper()
	f := newFakeRuntime()
	r := start(t, f)
	f.set("pod", "c1", Running)
	pass(time.Minute)
	return f, r
}

func (r *rig) Hint(ev Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hints = append(r.hints, timedEvent{ev, time.Now()})
}

func (r *rig) hintsOf(id string) []timedEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []timedEvent
	for _, h := range r.hints {
		if h.ID == id {
			out = append(out, h)
		}
	}
	return out
}

func (r *rig) last() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reports[len(r.reports)-1]
}

func pass(d time.Duration) {
	time.Sleep(d) // virtual: the test runs in a synctest bubble
	synctest.Wait()
}

func TestRelistIsTheKubeletsWithoutAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRuntime()
		f.noStream = ErrNoStream
		r := start(t, f)
		f.set("pod", "c1", Running)
		pass(2 * time.Second)
		f.set("pod", "c1", Exited)
		at := time.Now()
		pass(30 * time.Second)
		var died *timedEvent
		for _, h := range r.hintsOf("c1") {
			if h.Type == ContainerDied {
				if died != nil {
					t.Errorf("the exit was reported twice")
				}
				died = &h
			}
		}
		if died == nil || died.at.Sub(at) > 1100*time.Millisecond {
			t.Errorf("the exit was reported after %v, want within 1.1 s", died)
		}
		if rep := r.last(); rep.Streaming || rep.Period != time.Second {
			t.Errorf("report %+v, want no stream and a period of 1 s", rep)
		}
		f.opened(t, 1, "an absent one is not tried again within 30 s")
	})
}

func TestStreamIsFastAndTheRelistSlowsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := streaming(t)
		if rep := r.last(); !rep.Streaming || rep.Period != 10*time.Second {
			t.Errorf("report %+v, want a stream and a period of 10 s", rep)
		}
		at := time.Now()
		f.set("pod", "c1", Exited)
		synctest.Wait()
		hints := r.hintsOf("c1")
		if len(hints) != 1 || hints[0].Type != ContainerDied || !hints[0].at.Equal(at) {
			t.Fatalf("hints %v, want one ContainerDied at once", hints)
		}
		pass(time.Minute)
		if n := len(r.hintsOf("c1")); n != 1 {
			t.Errorf("%d hints, want the relist not to repeat the stream's", n)
		}
	})
}

func TestDeafStreamIsFoundOutWithin12sAndRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := streaming(t)
		f.change(func() { f.stalled = true })
		at := time.Now()
		f.set("pod", "c1", Exited)
		pass(15 * time.Second)
		hints := r.hintsOf("c1")
		if len(hints) != 1 || hints[0].at.Sub(at) > 12*time.Second {
			t.Fatalf("hints %v after %v, want one within 12 s", hints, at)
		}
		f.opened(t, 2, "the stalled one is replaced")
		if n := testutil.ToFloat64(r.engine.metrics.restarts); n != 1 {
			t.Errorf("restarts metric = %v, want 1", n)
		}
		if rep := r.last(); !rep.Streaming || rep.Period > 4*time.Second {
			t.Errorf("report %+v, want a stream and a period that starts again", rep)
		}
	})
}

func TestEventThatLagsBehindTheRelistIsNoReasonToRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := streaming(t)
		f.change(func() { f.stalled = true })
		f.set("pod", "c1", Exited)
		for len(r.hintsOf("c1")) == 0 {
			pass(100 * time.Millisecond)
		}
		f.events <- StreamEvent{Kind: StreamStopped, ID: "c1", PodUID: "pod"}
		pass(10 * time.Second)
		if n := len(r.hintsOf("c1")); n != 1 {
			t.Errorf("%d hints, want 1", n)
		}
		f.opened(t, 1, "the first one is kept")
	})
}

func TestLostStreamBringsTheRelistBackToSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRuntime()
		r := start(t, f)
		pass(time.Minute)
		f.change(func() { f.noStream = errors.New("gone") })
		f.cut <- errors.New("connection reset")
		synctest.Wait()
		if rep := r.last(); rep.Streaming || rep.Period != time.Second {
			t.Fatalf("report %+v, want no stream and a period of 1 s", rep)
		}
		f.set("pod", "c1", Exited)
		pass(1200 * time.Millisecond)
		if n := len(r.hintsOf("c1")); n != 1 {
			t.Errorf("%d hints while the stream is down, want 1", n)
		}
		f.change(func() { f.noStream = nil })
		pass(35 * time.Second)
		if rep := r.last(); !rep.Streaming {
			t.Errorf("report %+v, want the stream back", rep)
		}
	})
}

func TestStreamIsOpenedAsSoonAsTheRuntimeIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRuntime()
		r := start(t, f)
		pass(10 * time.Second)
		f.change(func() { f.noStream, f.listErr = errors.New("gone"), errors.New("gone") })
		f.cut <- errors.New("connection reset")
		pass(40 * time.Second) // the tries to open the stream have grown rare
		f.change(func() { f.noStream, f.listErr = nil, nil })
		pass(2100 * time.Millisecond)
		if rep := r.last(); !rep.Streaming {
			t.Errorf("report %+v 2 s after the runtime's return, want the stream back", rep)
		}
	})
}

func TestLoopTurnsAndHealthFallsWhileTheRuntimeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRuntime()
		r := start(t, f)
		if err := r.engine.Healthy(); err != nil {
			t.Fatalf("healthy after a relist: %v", err)
		}
		f.change(func() { f.hang = true })
		pass(4 * time.Minute)
		r.mu.Lock()
		for i := 1; i < len(r.turns); i++ {
			if idle := r.turns[i].Sub(r.turns[i-1]); idle > 1100*time.Millisecond {
				t.Errorf("the loop stood still for %v", idle)
			}
		}
		r.mu.Unlock()
		if err := r.engine.Healthy(); err == nil {
			t.Error("healthy after 4 minutes without a relist")
		}
		if rep := r.last(); rep.Err == nil {
			t.Error("the report has no error")
		}
		f.change(func() { f.hang = false })
		pass(2 * time.Minute)
		if err := r.engine.Healthy(); err != nil {
			t.Errorf("not healthy again: %v", err)
		}
	})
}

func TestStartHintsOnlyAtPodsInWhichSomethingEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRuntime()
		f.items.Add("fine", "a", Item{State: Running, Name: "a"})
		f.items.Add("ended", "b", Item{State: Exited, Name: "b"})
		r := start(t, f)
		if len(r.hints) != 1 || r.hints[0].Event != (Event{Type: PodSync, PodUID: "ended"}) {
			t.Errorf("hints %v, want one PodSync for ended", r.hints)
		}
	})
}

func TestEventOfUnknownPodIsLookedUpOrListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := streaming(t)
		f.change(func() { f.stalled = true })
		f.set("pod", "c1", Exited)
		f.events <- StreamEvent{Kind: StreamStopped, ID: "c1"}
		synctest.Wait()
		if h := r.hintsOf("c1"); len(h) != 1 || h[0].PodUID != "pod" {
			t.Errorf("hints %v, want the pod looked up", h)
		}
		f.set("pod", "c2", Exited)
		f.events <- StreamEvent{Kind: StreamStopped, ID: "c2"}
		pass(gap)
		if h := r.hintsOf("c2"); len(h) != 1 {
			t.Errorf("hints %v, want a relist at once to find the pod", h)
		}
	})
}

func TestOverflowIsCountedAndListed(t *testing.T) {
	s := newStream(nil, nil, newMetrics(prometheus.NewRegistry()))
	s.streamer = streamFunc(func(_ context.Context, opened func(), event func(StreamEvent)) error {
		opened()
		for range backlog + 5 {
			event(StreamEvent{})
		}
		return errors.New("done")
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no reader: the messages about up and down must not block
	_, _ = s.once(ctx)
	if n := testutil.ToFloat64(s.metrics.discarded); n < 5 {
		t.Errorf("discarded = %v, want at least 5", n)
	}
	if !s.overflowed.Load() {
		t.Error("the loop was not woken")
	}
}

type streamFunc func(context.Context, func(), func(StreamEvent)) error

func (f streamFunc) Stream(ctx context.Context, opened func(), event func(StreamEvent)) error {
	return f(ctx, opened, event)
}
