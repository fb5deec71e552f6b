package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/signal"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/prober/internal/probe"
)

const (
	// refresh is how often a record that did not change is put again, for its time.
	refresh = 10 * time.Second
	// tries is how often a probe that could not be run is tried at once, as in the kubelet.
	tries = 3
	// retry is the pause before a probe is run again if it could not be run.
	retry = time.Second
	// tracedProbes of a container are spans: one that fails for ever must not fill its trace.
	tracedProbes = 10
)

// ProbedContainer are what a worker goes by. They are replaced, never changed.
type ProbedContainer struct {
	Pod       *v1.Pod
	Container *v1.Container
	Probe     *v1.Probe
	// Plugin names what runs the probe instead of its handler; empty for none.
	Plugin string
	PodIP  string
	// ContainerID is bare; empty before there is a container.
	ContainerID string
	Running     bool
	// StartTime is when this container id was started.
	StartTime time.Time
	// Started says that no startup probe stands in the way any more.
	Started bool
	// Ending says that the pod is being torn down.
	Ending bool
	// Trace is the pod's sync that reported the container.
	Trace tracing.Parent
}

// Prober runs a probe once; see probe.Prober.
type Prober interface {
	Probe(ctx context.Context, t probe.Target) (probe.Result, error)
}

// Reporter hears what a worker finds. Its methods must not block.
type Reporter interface {
	// Record takes a record that changed, or that is due to be reported again.
	Record(r Record)
	// Counted reports one probe that came to a result.
	Counted(o Outcome, took time.Duration)
	// Event records an Event about the container.
	Event(f *ProbedContainer, reason, message string)
	// NotRun reports a probe that could not be run.
	NotRun(err error)
}

// Options of a Worker.
type Options struct {
	Kind     Kind
	Prober   Prober
	Reporter Reporter
	// Tracer continues the traces of pods; nil does not.
	Tracer *tracing.Tracer
	// Resume is what an earlier worker of this probe has counted; the zero value for none.
	Resume Record
	// Spread says that this worker is one of many that begin at once: its first probe comes some time
	// within its period. One that resumes goes on in the rhythm of the one before.
	Spread bool
	Log    *slog.Logger
}

// Worker probes one container for one purpose.
type Worker struct {
	o       Options
	changed signal.Signal

	mu        sync.Mutex
	container *ProbedContainer
	record    Record

	// What follows belongs to Run's goroutine.
	anchor     time.Time // of the ticks of liveness and startup probes
	start      delay     // the container's initial delay
	first      time.Time // no probe before it
	free       time.Time // since when no probe runs; ticks before it are gone
	probes     int       // of this container id, in this worker's life
	reported   Record    // as reported last
	reportedAt time.Time
	again      time.Time // when a probe that could not be run is to be run again
}

// New returns a worker that goes by f; Run runs it.
func New(o Options, f *ProbedContainer) *Worker {
	return &Worker{o: o, changed: signal.New(), container: f, record: o.Resume}
}

// Update replaces the container.
func (w *Worker) Update(f *ProbedContainer) {
	w.mu.Lock()
	w.container = f
	w.mu.Unlock()
	w.changed.Set()
}

// current returns the newest state of the container.
func (w *Worker) current() *ProbedContainer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.container
}

// Record returns the newest record.
func (w *Worker) Record() Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.record
}

// Run probes until ctx ends.
func (w *Worker) Run(ctx context.Context) {
	now := time.Now()
	w.anchor, w.free = now, now
	w.resume(now)
	if w.o.Spread && w.o.Resume.LastStart.IsZero() {
		every := period(w.current().Probe)
		w.first = now.Add(rand.N(every))
		w.anchor = w.first.Add(-every) // so that the first tick is at first
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		f := w.look()
		due, wanted := w.next(f)
		wait := time.Until(due)
		if wanted && wait <= 0 {
			w.probe(ctx, f)
			if ctx.Err() != nil {
				return
			}
			continue
		}
		if !wanted {
			wait = time.Hour // the container must change first
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-timer.C:
		}
	}
}

// resume puts the time of the probe before on this process's clock. If it has yet to come, the clock was set back
// since, and the probe counts as one of now: what has been counted stays, and the next one is due within a period.
func (w *Worker) resume(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.record.LastStart; !last.IsZero() {
		w.record.LastStart = now.Add(min(last.Sub(now), 0))
	}
}

// delay is the end of a container's initial delay, on this process's clock: no change of the host's time moves it.
type delay struct {
	id      string
	started time.Time
	end     time.Time
}

// of returns when the container's initial delay ends. It never takes longer from now than it is, however far the
// container's start lies in the future after the clock was set back.
func (d *delay) of(f *ProbedContainer) time.Time {
	if d.end.IsZero() || d.id != f.ContainerID || !d.started.Equal(f.StartTime) {
		now, length := time.Now(), time.Duration(f.Probe.InitialDelaySeconds)*time.Second
		*d = delay{id: f.ContainerID, started: f.StartTime, end: now.Add(min(f.StartTime.Sub(now)+length, length))}
	}
	return d.end
}

// look takes the newest state; a new container id begins a new record.
func (w *Worker) look() *ProbedContainer {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id := w.container.ContainerID; id != "" && id != w.record.ContainerID {
		w.record = Record{ContainerID: id}
		w.probes, w.again = 0, time.Time{}
	}
	return w.container
}

// next says when the next probe is due; wanted is false when none is, as things are.
func (w *Worker) next(f *ProbedContainer) (due time.Time, wanted bool) {
	r := &w.record
	switch {
	case f.ContainerID == "" || !f.Running || r.final(w.o.Kind):
		return time.Time{}, false
	case f.Ending && w.o.Kind != Readiness:
		return time.Time{}, false // nothing restarts a container of a pod that ends
	case f.Started == (w.o.Kind == Startup):
		return time.Time{}, false
	}
	every := period(f.Probe)
	start := w.start.of(f)
	switch {
	case !w.again.IsZero():
		due = w.again
	case !r.LastStart.IsZero() && w.probes == 1 && w.o.Kind == Readiness && r.Result != success:
		// The first one comes with the container's start, which most servers are not up by. The
		// kubelet asks again about a second later, too.
		due = r.LastStart.Add(min(every, time.Second))
	case w.probes == 0 && r.nearsThreshold():
		// The worker before died on its way to another result, which is not to wait for the next tick
		// too. Few are, so that this is no burst.
		due = later(r.LastStart.Add(every), w.free)
	case !r.LastStart.IsZero():
		due = after(r.LastStart, every, w.free)
	case w.o.Kind == Readiness:
		due = start // as soon as it may: the pod waits for it
	default:
		due = after(w.anchor, every, later(start, w.anchor))
	}
	if w.probes == 0 {
		due = later(due, w.first)
	}
	return later(due, start), true
}

// after returns the first tick of a clock that ticked at from which comes at or after t, and after from.
func after(from time.Time, every time.Duration, t time.Time) time.Time {
	n := (t.Sub(from) + every - 1) / every
	return from.Add(max(n, 1) * every)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func period(p *v1.Probe) time.Duration {
	return time.Duration(max(p.PeriodSeconds, 1)) * time.Second
}

// probe runs one probe and counts it.
func (w *Worker) probe(ctx context.Context, f *ProbedContainer) {
	began := time.Now()
	result, err := w.traced(ctx, f)
	w.free = time.Now()
	if ctx.Err() != nil {
		return // the successor runs it again
	}
	w.mu.Lock()
	w.probes++
	w.record.LastStart = began
	w.again = time.Time{}
	w.mu.Unlock()
	switch {
	case errors.Is(err, probe.ErrUnreachable):
		w.again = time.Now().Add(min(period(f.Probe), retry))
		w.o.Reporter.NotRun(err)
		return
	case err != nil:
		state := "unknown"
		if errors.Is(err, probe.ErrBroken) {
			state = "failure"
		}
		w.o.Reporter.Event(f, "Unhealthy",
			w.o.Kind.Title()+" probe errored and resulted in "+state+" state: "+err.Error())
		return
	}
	switch result.Outcome {
	case probe.Failure:
		w.o.Reporter.Event(f, "Unhealthy", w.o.Kind.Title()+" probe failed: "+result.Output)
	case probe.Warning:
		w.o.Reporter.Event(f, "ProbeWarning", w.o.Kind.Title()+" probe warning: "+result.Output)
	case probe.Success:
	}
	w.o.Reporter.Counted(outcomeOf(result), time.Since(began))
	w.count(f, outcomeOf(result))
}

// resultNames are those of outcomes in traces.
var resultNames = map[Outcome]string{success: "success", failure: "failure"}

func outcomeOf(r probe.Result) Outcome {
	if r.Outcome == probe.Failure {
		return failure
	}
	return success
}

// traced runs the probe, as a span of the pod's trace if it is one of the first: those the pod waits for to be ready.
func (w *Worker) traced(ctx context.Context, f *ProbedContainer) (probe.Result, error) {
	if w.probes >= tracedProbes || w.record.Result == success {
		return w.try(ctx, f)
	}
	ctx, span := w.o.Tracer.Continue(ctx, f.Trace, "doProbe")
	v, err := w.try(ctx, f)
	if span.Recording() {
		span.Set(tracing.PodUID, string(f.Pod.UID))
		span.Set(tracing.ContainerName, f.Container.Name)
		span.Set(tracing.ContainerID, f.ContainerID)
		span.Set(tracing.ProbeKind, string(w.o.Kind))
		if err == nil {
			span.Set(tracing.ProbeResult, resultNames[outcomeOf(v)])
		}
	}
	span.End(err)
	return v, err
}

// try runs the probe, and again if it could not be run for a reason of its own.
func (w *Worker) try(ctx context.Context, f *ProbedContainer) (v probe.Result, err error) {
	target := probe.Target{
		Probe: f.Probe, Container: f.Container, ContainerID: f.ContainerID, PodIP: f.PodIP,
		Kind: string(w.o.Kind), Plugin: f.Plugin, Pod: f.Pod,
	}
	for range tries {
		v, err = w.o.Prober.Probe(ctx, target)
		if err == nil || ctx.Err() != nil || errors.Is(err, probe.ErrUnreachable) {
			return v, err
		}
	}
	return v, err
}

// count takes an outcome into the record, if it is still about the container that it was of.
func (w *Worker) count(f *ProbedContainer, o Outcome) {
	w.mu.Lock()
	if w.record.ContainerID != f.ContainerID || w.container.ContainerID != f.ContainerID {
		w.mu.Unlock()
		return
	}
	before := w.record.Result
	w.record.count(f.Probe, o)
	r := w.record
	w.mu.Unlock()
	if before != r.Result {
		w.o.Log.Debug("probe came to a result", logkey.Probe, w.o.Kind, logkey.Container, f.Container.Name,
			logkey.ID, f.ContainerID,
			"result", r.Result)
	}
	if now := time.Now(); !r.same(&w.reported) || now.Sub(w.reportedAt) >= refresh {
		w.reported, w.reportedAt = r, now
		w.o.Reporter.Record(r)
	}
}
