package manager

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podtrace"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

const (
	defaultWorkers = 8
	defaultTimeout = 10 * time.Second
	// reconcileAfter is how long a status in the API that is not the wanted one may stay: long
	// enough for a watch that lags behind, and the kubelet's own period.
	reconcileAfter = 10 * time.Second
	// joinPeriod is how long a status that is not awaited may wait, so that those that follow it make one write with it.
	// A pod that starts alone has three statuses within this time.
	joinPeriod = 300 * time.Millisecond
	firstRetry = 200 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Options of a Manager.
type Options struct {
	Client Client
	// Workers is how many pods are written at the same time; 0 stands for 8.
	Workers int
	// Traces are those of the pods; nil is none.
	Traces *podtrace.Traces
	// Timeout of each call to the apiserver; 0 stands for 10 s.
	Timeout time.Duration
	// Log; nil stands for the default logger.
	Log *slog.Logger
	// Metrics takes the manager's metrics; nil leaves them unregistered.
	Metrics prometheus.Registerer
}

// Manager brings the status of each pod to the apiserver. Its methods may be called at the
// same time, and none of them waits for the apiserver. For a static pod, hand over its mirror
// pod: what counts is the UID in the API.
type Manager struct {
	client  Client
	workers int
	timeout time.Duration
	traces  *podtrace.Traces
	log     *slog.Logger
	metrics *managerMetrics
	wake    chan struct{} // wakes the clock when something is due sooner

	mu      sync.Mutex
	work    *sync.Cond // signalled when a queue grows or the manager ends
	ended   bool
	entries map[types.UID]*entry
	urgent  []types.UID
	normal  []types.UID
	outage  bool // the last call failed for a reason that is not one pod's own
}

// entry is what is known of one pod.
type entry struct {
	pod *v1.Pod // newest object of the API; its status is the base of patches
	// seen is when podsync first reported the pod.
	seen time.Time
	want *v1.PodStatus // nil until the first Set
	// in is the sync that want is of.
	in tracing.Parent
	// refused is what the API made of want when writing it changed nothing, normalized: the server
	// drops the rest of want, and no write will ever bring it. Nil while that has not been seen.
	refused   *v1.PodStatus
	version   uint64 // counts changes of want and delivered those that arrived
	delivered uint64
	since     time.Time // of the first change that did not arrive yet
	force     bool      // write want although it arrived already: the API has another status
	finished  bool      // want is final and the pod may be deleted
	deleted   bool      // the API has taken our deletion
	missing   bool      // the API has said that it has no such pod

	queued, inFlight bool
	failures         int
	due              time.Time // zero, or when to look at it again
	joined           time.Time // zero, or until when the next status may join the newest
}

// New returns a Manager that writes nothing until Run runs.
func New(o Options) (*Manager, error) {
	if o.Client == nil {
		return nil, errors.New("status manager: Options.Client is missing: give a client of the apiserver")
	}
	if o.Workers < 0 || o.Timeout < 0 {
		return nil,
			errors.New("status manager: Options.Workers and Options.Timeout must not be negative: leave them 0 for the defaults")
	}
	m := &Manager{
		client: o.Client, workers: o.Workers, timeout: o.Timeout, traces: o.Traces, log: o.Log,
		entries: map[types.UID]*entry{}, wake: make(chan struct{}, 1),
	}
	if m.workers == 0 {
		m.workers = defaultWorkers
	}
	if m.timeout == 0 {
		m.timeout = defaultTimeout
	}
	if m.log == nil {
		m.log = slog.Default()
	}
	m.work = sync.NewCond(&m.mu)
	var err error
	m.metrics, err = newMetrics(o.Metrics, m)
	return m, err
}

// Run writes statuses until ctx ends, and returns nil when its goroutines have ended.
func (m *Manager) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ended = true
		m.work.Broadcast()
	})
	defer stop()
	var wg sync.WaitGroup
	for range m.workers {
		wg.Go(func() {
			for {
				uid, ok := m.next()
				if !ok {
					return
				}
				m.deliver(ctx, uid)
			}
		})
	}
	wg.Go(func() { m.clock(ctx) })
	wg.Wait()
	return nil
}

// Set gives the newest status of a pod. One that says the same as the last is dropped. The pod
// is an object as the API gave it: its status is what the patch is made against.
func (m *Manager) Set(p *v1.Pod, s v1.PodStatus) { m.set(p, s, false) }

// Terminated gives the final status of a pod of which nothing is left on the node: no
// container, volume or cgroup. When the apiserver has it and the pod is being deleted there,
// it is deleted for good. The status is made final as Terminate does it.
func (m *Manager) Terminated(p *v1.Pod, s v1.PodStatus) { m.set(p, s, true) }

func (m *Manager) set(p *v1.Pod, s v1.PodStatus, finished bool) {
	want := s.DeepCopy()
	if finished {
		*want = status.Terminate(p, s, time.Now())
	}
	status.Normalize(p, want)
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.see(p)
	e.finished = e.finished || finished
	before := e.want
	if before == nil {
		before = &p.Status
	}
	m.metrics.countTerminations(before, want)
	if before.Phase == v1.PodPending && want.Phase == v1.PodRunning {
		m.metrics.started.Observe(time.Since(e.seen).Seconds())
	}
	if e.want == nil || !same(e.want, want) {
		e.want, e.refused, e.in = want, nil, m.traces.Of(p.UID)
		if e.version == e.delivered {
			e.since = time.Now()
		}
		e.version++
	}
	m.enqueue(p.UID, e)
}

// UpdateFromAPI learns what the API has of a pod: each addition and change that the watch brings.
func (m *Manager) UpdateFromAPI(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.entries[p.UID]; !known {
		return // nothing to report about it yet; Set brings the pod along
	}
	e := m.entries[p.UID]
	back := e.isBack(p)
	m.see(p)
	if back {
		e.missing, e.deleted, e.force = false, false, true
		m.log.Warn("the API has a pod again that it had no longer, reporting its status", logkey.Pod,
			p.Namespace+"/"+p.Name, logkey.PodUID, p.UID)
	}
	m.enqueue(p.UID, e)
	m.reconcile(e)
}

// isBack reports whether a pod that the watch brings was gone before. After our deletion the watch may still bring what
// was there before it, and the object that finalizers keep, with a grace period of 0.
func (e *entry) isBack(p *v1.Pod) bool {
	grace := p.DeletionGracePeriodSeconds
	return e.missing && !older(p, e.pod) || e.deleted && older(e.pod, p) && (grace == nil || *grace != 0)
}

// Forget drops a pod that the API no longer has, or that is no longer this node's.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, uid)
}

// Last returns the status that was given last, which is the base of the next one.
func (m *Manager) Last(uid types.UID) (v1.PodStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil && e.want != nil {
		return *e.want.DeepCopy(), true
	}
	return v1.PodStatus{}, false
}

// Delivered reports whether the apiserver has the newest status of the pod.
func (m *Manager) Delivered(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[uid]
	return e != nil && e.want != nil && e.delivered == e.version
}

// Pending counts the pods with a newest status, or a deletion, that has not arrived.
func (m *Manager) Pending() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, e := range m.entries {
		if e.needsWork() {
			n++
		}
	}
	return n
}

// see keeps the newest object of the API. A watch may bring one that is older than the
// answer to our last patch; that one must not become the base of the next.
func (m *Manager) see(p *v1.Pod) *entry {
	e := m.entries[p.UID]
	if e == nil {
		e = &entry{pod: p, seen: time.Now()}
		m.entries[p.UID] = e
		return e
	}
	if !older(p, e.pod) {
		e.pod = p
	}
	return e
}

// older reports whether a is known to be an older version of b.
func older(a, b *v1.Pod) bool {
	if a.ResourceVersion == "" || b.ResourceVersion == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// needsWork reports whether the apiserver has to be called.
func (e *entry) needsWork() bool {
	return !e.deleted && !e.missing && e.want != nil && (e.version != e.delivered || e.force || e.deletable())
}

func (e *entry) deletable() bool {
	return e.finished && !e.deleted && !e.missing && e.version == e.delivered &&
		e.pod.DeletionTimestamp != nil && podutil.IsTerminal(e.pod.Status.Phase)
}

// waits reports whether a failed attempt is to be followed by another later.
func (e *entry) waits() bool { return e.failures > 0 && !e.due.IsZero() }

// isUrgent are the statuses that others wait for: traffic that begins or ends, and a name
// that becomes free.
func (e *entry) isUrgent() bool {
	return e.finished || e.pod.DeletionTimestamp != nil || e.changesReady()
}

// changesReady reports whether the newest status makes the pod ready, or makes it so no longer.
func (e *entry) changesReady() bool {
	now, before := podutil.Condition(e.want.Conditions, v1.PodReady), podutil.Condition(e.pod.Status.Conditions,
		v1.PodReady)
	return (now != nil && now.Status == v1.ConditionTrue) != (before != nil && before.Status == v1.ConditionTrue)
}

// mayJoin reports whether the newest status may wait for the next: that of a pod whose start the API shows, and which
// does not make it ready. What happens to a pod that runs, such as a resize, is awaited.
func (e *entry) mayJoin() bool {
	starts := e.pod.Status.Phase == v1.PodPending || e.pod.Status.Phase == ""
	return starts && !e.finished && !e.force && e.failures == 0 && e.version != e.delivered && !e.changesReady() &&
		!podutil.IsTerminal(e.want.Phase)
}

// join lets the newest status wait for the next, until its time is over.
func (m *Manager) join(e *entry) (waits bool) {
	until := e.since.Add(joinPeriod)
	if !e.mayJoin() || !time.Now().Before(until) {
		e.joined = time.Time{}
		return false
	}
	if !e.joined.Equal(until) {
		e.joined = until
		m.wakeClock()
	}
	return true
}

// enqueue lets a worker take the pod, unless one has it, or a failed attempt or another status has to be waited for.
func (m *Manager) enqueue(uid types.UID, e *entry) {
	if !e.needsWork() || e.queued || e.inFlight || e.waits() || m.join(e) {
		return
	}
	e.queued = true
	e.due = time.Time{}
	if e.isUrgent() {
		m.urgent = append(m.urgent, uid)
	} else {
		m.normal = append(m.normal, uid)
	}
	m.work.Signal()
}

// next waits for a pod to write.
func (m *Manager) next() (types.UID, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if m.ended {
			return "", false
		}
		for _, queue := range []*[]types.UID{&m.urgent, &m.normal} {
			for len(*queue) > 0 {
				uid := (*queue)[0]
				*queue = (*queue)[1:]
				e := m.entries[uid]
				if e == nil || !e.queued {
					continue // forgotten, or taken from the other queue
				}
				e.queued, e.inFlight = false, true
				return uid, true
			}
		}
		m.work.Wait()
	}
}

// reconcile plans a new write if the API's status is not the wanted one. It is compared with what
// is wanted, not with what the last write led to: another may have changed a field before that
// write arrived, and the write carries only the fields that differed when it was made.
func (m *Manager) reconcile(e *entry) {
	if e.want == nil || e.version != e.delivered || e.deleted || e.missing {
		return
	}
	now := normalized(e.pod, &e.pod.Status)
	differs := !same(now, normalized(e.pod, merged(e.pod, e.want))) && (e.refused == nil || !same(now, e.refused))
	switch {
	case !differs && e.failures == 0:
		e.due = time.Time{}
	case differs && e.due.IsZero() && !e.queued && !e.inFlight:
		m.wakeAt(e, time.Now().Add(reconcileAfter))
	}
}

func (m *Manager) wakeAt(e *entry, due time.Time) {
	e.due = due
	m.wakeClock()
}

func (m *Manager) wakeClock() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// clock hands pods that are due to the workers.
func (m *Manager) clock(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		if next := m.release(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// release enqueues what is due and returns when the next is.
func (m *Manager) release(now time.Time) (next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, e := range m.entries {
		m.releaseDue(uid, e, now)
		if !e.joined.IsZero() && !e.joined.After(now) {
			e.joined = time.Time{} // also if a write is under way, after which it is enqueued anyway
			m.enqueue(uid, e)
		}
		for _, at := range []time.Time{e.due, e.joined} {
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

func (m *Manager) releaseDue(uid types.UID, e *entry, now time.Time) {
	if e.due.IsZero() || e.due.After(now) {
		return
	}
	if e.failures == 0 {
		e.force = true // it is due because the API has another status
		m.metrics.reconciled.Inc()
		m.log.Info("pod status in the API differs, patching it again",
			logkey.Pod, e.pod.Namespace+"/"+e.pod.Name,
			logkey.PodUID, uid)
	}
	e.due = time.Time{}
	m.enqueue(uid, e)
}
