package relist

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Lister lists every sandbox and container of the runtime.
type Lister interface {
	List(ctx context.Context) (Snapshot, error)
}

// Streamer follows the runtime's event stream until it fails or ctx ends. It calls opened once
// the stream is open, then event for each event, both from the calling goroutine.
type Streamer interface {
	Stream(ctx context.Context, opened func(), event func(StreamEvent)) error
}

// StreamEventKind is what a runtime event is about.
type StreamEventKind int

// The kinds, as CRI has them.
const (
	StreamCreated StreamEventKind = iota
	StreamStarted
	StreamStopped
	StreamDeleted
)

// StreamEvent is one event of the runtime's stream.
type StreamEvent struct {
	Kind StreamEventKind
	// ID is the container's or sandbox's, bare.
	ID string
	// PodUID is empty when the runtime did not name it.
	PodUID string
	// Created is when the runtime made the event; zero when unknown.
	Created time.Time
}

// Sink takes hints. It must not block.
type Sink interface {
	Hint(Event)
}

// Report is what the engine says about itself at each relist's end and when the stream comes or goes.
type Report struct {
	// Began is when the last finished relist began; zero before the first.
	Began time.Time
	// Generation counts finished relists.
	Generation uint64
	// Streaming reports whether the event stream is connected.
	Streaming bool
	// Err is the last relist's error; nil when it succeeded.
	Err error
	// Period is the current pause between relists.
	Period time.Duration
}

// Options of an Engine. Durations that are zero take the default named at each.
type Options struct {
	Lister   Lister
	Streamer Streamer
	Sink     Sink
	// Reported is called from the loop with each Report; it must not block.
	Reported func(Report)
	// Turned is called in each round of the loop, at least once a second.
	Turned func()

	// Fastest is the pause between relists while the stream is down; default 1 s, the kubelet's.
	Fastest time.Duration
	// Slowest is the pause while the stream proves right; default 10 s.
	Slowest time.Duration
	// ListTimeout bounds one relist; default 1 m.
	ListTimeout time.Duration
	// Unhealthy is how old the last successful relist may be; default 3 m, the kubelet's.
	Unhealthy time.Duration

	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Figures that need not be set.
const (
	// grace is how long a runtime event may lag behind a relist that saw the same exit.
	grace = 2 * time.Second
	// memory is how long the ids that the stream reported are kept.
	memory = time.Minute
	// gap is the least pause between two relists, however many are asked for.
	gap = 200 * time.Millisecond
	// turn is the period of the loop when nothing happens.
	turn = time.Second
)

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Fastest, time.Second)
	def(&o.Slowest, 10*time.Second)
	def(&o.ListTimeout, time.Minute)
	def(&o.Unhealthy, 3*time.Minute)
	if o.Reported == nil {
		o.Reported = func(Report) {}
	}
	if o.Turned == nil {
		o.Turned = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = prometheus.NewRegistry()
	}
}

type listed struct {
	began    time.Time
	snapshot Snapshot
	err      error
}

// Engine runs the loop. Make it with New.
type Engine struct {
	opts    Options
	metrics *metrics
	stream  *stream
	results chan listed

	mu       sync.Mutex
	lastGood time.Time // when the last successful relist began

	// What follows belongs to the loop's goroutine.
	records    Snapshot // nil before the first successful relist
	report     Report
	relisting  bool
	again      bool      // a relist was asked for while one ran
	next       time.Time // when the next relist begins
	began      time.Time // when the newest relist began, finished or not
	previous   time.Time // when the last successful relist began, for the judgement of the stream
	streamedAt time.Time // since when the stream is up; zero while it is down
	heard      map[heardKey]time.Time
	missed     map[string]time.Time // exits that only the relist saw: container id → when
}

// heardKey is one fact that can be reported twice: by the stream and by the relist.
type heardKey struct {
	id   string
	kind EventType
}

// New makes an engine; Run runs it.
func New(o Options) *Engine {
	o.setDefaults()
	m := newMetrics(o.Metrics)
	return &Engine{
		opts: o, metrics: m,
		stream:  newStream(o.Streamer, o.Log, m),
		results: make(chan listed, 1),
		heard:   make(map[heardKey]time.Time),
		missed:  make(map[string]time.Time),
	}
}

// Healthy returns an error, in the kubelet's words, while no relist has succeeded for Options.Unhealthy.
func (e *Engine) Healthy() error {
	e.mu.Lock()
	last := e.lastGood
	e.mu.Unlock()
	if last.IsZero() {
		return fmt.Errorf("pleg has yet to be successful")
	}
	if age := time.Since(last); age > e.opts.Unhealthy {
		return fmt.Errorf("pleg was last seen active %v ago; threshold is %v", age.Round(time.Millisecond),
			e.opts.Unhealthy)
	}
	return nil
}

// Run relists and follows the stream until ctx ends, and returns when its workers have ended too.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	workers.Go(func() { e.stream.run(ctx) })

	e.report.Period = e.opts.Fastest
	e.metrics.period.Set(e.opts.Fastest.Seconds())
	e.next = time.Now()
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-e.results:
			e.finished(r)
		case m := <-e.stream.messages:
			e.streamed(m)
		case <-ticker.C:
			e.judgeStream(time.Now())
		case <-timer.C:
		}
		e.opts.Turned()
		if e.stream.overflowed.Swap(false) {
			e.soon()
		}
		if now := time.Now(); !e.relisting && !now.Before(e.next) {
			e.relisting = true
			e.relist(ctx, now, &workers)
		}
		if !e.relisting {
			timer.Reset(time.Until(e.next))
		}
	}
}

// relist starts the one worker that lists.
func (e *Engine) relist(ctx context.Context, now time.Time, workers *sync.WaitGroup) {
	if !e.began.IsZero() {
		e.metrics.interval.Observe(now.Sub(e.began).Seconds())
	}
	e.began = now
	workers.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, e.opts.ListTimeout)
		defer cancel()
		snapshot, err := e.opts.Lister.List(ctx)
		e.metrics.duration.Observe(time.Since(now).Seconds())
		e.results <- listed{began: now, snapshot: snapshot, err: err}
	})
}

// soon brings the next relist forward.
func (e *Engine) soon() {
	if e.relisting {
		e.again = true
		return
	}
	if now := time.Now(); e.next.After(now) {
		e.next = now
		if earliest := e.began.Add(gap); earliest.After(now) {
			e.next = earliest
		}
	}
}

func (e *Engine) finished(r listed) {
	now := time.Now()
	e.relisting = false
	failed := e.report.Err
	e.report.Began, e.report.Err = r.began, r.err
	e.report.Generation++
	if failed != nil && r.err == nil {
		e.opts.Log.Info("relist succeeds again")
		e.stream.retry() // its runtime is back too
	}
	if r.err != nil {
		e.metrics.failures.Inc()
		if failed == nil || failed.Error() != r.err.Error() {
			e.opts.Log.Warn("relist failed, will retry", logkey.Err, r.err)
		}
		e.setPeriod(e.opts.Fastest)
	} else {
		e.mu.Lock()
		e.lastGood = r.began
		e.mu.Unlock()
		e.metrics.lastSeen.Set(float64(r.began.Unix()))
		e.compare(r, now)
		e.previous = r.began
	}
	e.next = now.Add(e.report.Period)
	if e.again {
		e.again = false
		e.soon()
	}
	e.opts.Reported(e.report)
}

// compare sends the sink what the relist saw and the stream did not, and judges the stream by it.
func (e *Engine) compare(r listed, now time.Time) {
	e.metrics.count(r.snapshot)
	if e.records == nil {
		// The first relist has nothing to compare with. Pods in which all runs are as podsync
		// left them; in the others something may have ended while pleg was away.
		e.records = r.snapshot
		for _, uid := range r.snapshot.unfinished() {
			e.opts.Sink.Hint(Event{Type: PodSync, PodUID: uid})
		}
		return
	}
	covered := !e.streamedAt.IsZero() && !e.previous.IsZero() && e.streamedAt.Before(e.previous)
	surprised := false
	for _, event := range Diff(e.records, r.snapshot) {
		if event.Type == ContainerChanged {
			continue // nothing acts upon it, as with the kubelet
		}
		if _, known := e.heard[heardKey{event.ID, event.Type}]; known {
			continue
		}
		e.heard[heardKey{event.ID, event.Type}] = now
		if event.Type == ContainerDied && covered {
			surprised = true
			if !event.Sandbox { // not every runtime reports sandboxes
				e.missed[event.ID] = now
			}
		}
		e.opts.Log.Debug("relist saw a change", logkey.Type, event.Type.String(), logkey.PodUID, event.PodUID,
			logkey.ID, event.ID)
		e.opts.Sink.Hint(event)
	}
	e.records = r.snapshot
	switch {
	case covered && !surprised:
		e.setPeriod(min(2*e.report.Period, e.opts.Slowest))
	default:
		e.setPeriod(e.opts.Fastest)
	}
	for k, at := range e.heard {
		if now.Sub(at) > memory {
			delete(e.heard, k)
		}
	}
}

func (e *Engine) setPeriod(d time.Duration) {
	if d != e.report.Period {
		e.report.Period = d
		e.metrics.period.Set(d.Seconds())
	}
}

// judgeStream restarts a stream that kept silent about an exit: connected, but stalled.
func (e *Engine) judgeStream(now time.Time) {
	for id, at := range e.missed {
		if now.Sub(at) < grace {
			continue
		}
		e.opts.Log.Warn("event stream missed an exit, restarting it", logkey.ID, id)
		e.metrics.restarts.Inc()
		clear(e.missed)
		e.stream.restart()
		return
	}
}

func (e *Engine) streamed(m message) {
	now := time.Now()
	switch m.kind {
	case messageUp:
		e.opts.Log.Info("event stream is up")
		e.streamedAt = now
		e.report.Streaming = true
		e.metrics.streaming.Set(1)
		e.opts.Reported(e.report)
		e.soon() // what happened before it came up
	case messageDown:
		if e.streamedAt.IsZero() {
			return
		}
		e.streamedAt = time.Time{}
		e.report.Streaming = false
		e.metrics.streaming.Set(0)
		clear(e.missed)
		e.setPeriod(e.opts.Fastest)
		e.opts.Reported(e.report)
		e.soon()
	case messageEvent:
		e.runtimeEvent(m.event, now)
	}
}

func (e *Engine) runtimeEvent(ev StreamEvent, now time.Time) {
	if !ev.Created.IsZero() {
		e.metrics.latency.Observe(max(0, now.Sub(ev.Created).Seconds()))
	}
	delete(e.missed, ev.ID)
	switch ev.Kind {
	case StreamStarted:
		// podsync's own doing, which it has read itself.
		e.heard[heardKey{ev.ID, ContainerStarted}] = now
	case StreamDeleted:
		e.heard[heardKey{ev.ID, ContainerRemoved}] = now
	case StreamStopped:
		key := heardKey{ev.ID, ContainerDied}
		if _, known := e.heard[key]; known {
			return // the relist was quicker
		}
		uid := ev.PodUID
		if uid == "" {
			uid = e.records.PodOf(ev.ID)
		}
		if uid == "" {
			e.soon()
			return
		}
		e.heard[key] = now
		e.opts.Sink.Hint(Event{Type: ContainerDied, PodUID: uid, ID: ev.ID})
	}
}
