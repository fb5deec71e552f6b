package manager

import (
	"cmp"
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/prober/internal/worker"
)

// pod is one assigned pod and the workers of its probes.
type pod struct {
	m      *Manager
	uid    string
	probes map[string]*running // by key
}

// running is a worker that runs.
type running struct {
	*worker.Worker
	reporter *reporter
	cancel   context.CancelFunc
}

func newPod(m *Manager, uid string) *pod {
	return &pod{m: m, uid: uid, probes: map[string]*running{}}
}

// stop ends the workers. deal is called with each key after its worker has stopped.
func (p *pod) stop(deal func(key string)) {
	for key, r := range p.probes {
		r.stop(func() { deal(key) })
	}
	clear(p.probes)
}

func (r *running) stop(deal func()) {
	r.cancel()
	r.reporter.close(deal)
}

// update gives every probe a worker and every worker its container.
func (p *pod) update(ctx context.Context, generation uint64, seen *nodepods.Pod) {
	if seen.Reported && podutil.IsTerminal(seen.Status.Phase) {
		p.stop(func(string) {}) // its last results stay: nothing runs that they could be about
		return
	}
	for c := range podutil.LongRunning(&seen.Spec) {
		p.container(ctx, c, generation, seen)
	}
}

func (p *pod) container(ctx context.Context, c *v1.Container, generation uint64, seen *nodepods.Pod) {
	container := worker.ProbedContainer{Pod: seen.Pod, Container: c, Ending: seen.Terminating,
		Started: c.StartupProbe == nil}
	if len(seen.IPs) > 0 {
		container.PodIP = seen.IPs[0]
	}
	for i := range seen.Containers {
		if s := &seen.Containers[i]; s.Name == c.Name {
			container.ContainerID, container.Running, container.StartTime = s.ID, s.IsRunning(), s.Started
		}
	}
	if p.m.o.Tracer != nil {
		container.Trace = tracing.ParseParent(p.m.b.Pods.Traceparent(p.uid))
	}
	reported := cmp.Or(podutil.ContainerStatus(seen.Status.InitContainerStatuses, c.Name),
		podutil.ContainerStatus(seen.Status.ContainerStatuses, c.Name))
	if reported != nil && container.Running {
		container.Started = container.Started || reported.Started != nil && *reported.Started
	}
	for _, kind := range worker.Kinds() {
		if probe := kind.Of(c); probe != nil {
			f := container
			f.Probe, f.Plugin = probe, pluginOf(seen.Pod, c.Name, kind)
			p.probe(ctx, kind, &f, generation)
		}
	}
}

// probe starts or updates the worker of one probe.
func (p *pod) probe(ctx context.Context, kind worker.Kind, f *worker.ProbedContainer, generation uint64) {
	k := key(p.uid, f.Container.Name, kind)
	if r := p.probes[k]; r != nil {
		known, _ := p.m.b.Known.Get(k)
		r.reporter.assigned(generation, known)
		r.Update(f)
		return
	}
	reporter := newReporter(p.m, k, kind, f, generation)
	o := worker.Options{
		Kind:     kind,
		Prober:   p.m.o.Prober,
		Tracer:   p.m.o.Tracer,
		Reporter: reporter,
		Spread:   p.m.spread(f.Probe),
		Log:      p.m.o.Log,
	}
	if known, ok := p.m.b.Known.Get(k); ok {
		o.Resume = worker.RecordOf(known, p.m.b.Bus())
		reporter.Record(o.Resume)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &running{Worker: worker.New(o, f), reporter: reporter, cancel: cancel}
	p.probes[k] = r
	p.m.running.Go(func() { r.Run(ctx) })
}

// reporter carries what one worker finds to bus, outbox and metrics.
type reporter struct {
	m    *Manager
	key  string
	kind worker.Kind
	pod  *v1.Pod
	name string
	c    counters

	mu         sync.Mutex
	generation uint64
	record     worker.Record
	closed     bool
	notRun     bool
}

func newReporter(m *Manager, key string, kind worker.Kind, f *worker.ProbedContainer, generation uint64) *reporter {
	return &reporter{
		m: m, key: key, kind: kind, pod: f.Pod, name: f.Container.Name, generation: generation,
		c: m.o.Metrics.of(f.Pod, f.Container.Name, kind),
	}
}

// Record implements worker.Reporter.
func (r *reporter) Record(rec worker.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record = rec
	r.put()
}

func (r *reporter) put() {
	if !r.closed && r.record.ContainerID != "" {
		r.m.b.Results.Refresh(r.key, r.record.Message(r.m.o.Replica, r.generation, r.m.b.Bus()))
	}
}

// close ends the reporting and then deals with the key.
func (r *reporter) close(deal func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		deal()
		r.c.forget()
	}
}

// Counted implements worker.Reporter.
func (r *reporter) Counted(o worker.Outcome, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notRun = false
	if !r.closed {
		r.c.count(o, took)
	}
}

// NotRun implements worker.Reporter. It is logged once until one is run again.
func (r *reporter) NotRun(err error) {
	r.m.o.Metrics.notRun.Inc()
	r.mu.Lock()
	first := !r.notRun
	r.notRun = true
	r.mu.Unlock()
	if first {
		r.m.o.Log.Warn("probe could not run, not counted", logkey.Pod, podName(r.pod), logkey.Container, r.name,
			logkey.Probe, r.kind, logkey.Err, err)
	}
}

// Event implements worker.Reporter.
func (r *reporter) Event(f *worker.ProbedContainer, reason, message string) {
	r.m.o.Events.Event(eventref.Container(f.Pod, f.Container.Name), v1.EventTypeWarning, reason, message)
}
