// Package calllimit limits the expensive calls to the container runtime.
//
// At most Limits.Slots calls run at a time, in the order of the requests within a class. A call that takes longer
// than Limits.SlotTimeout no longer counts. Urgent calls have their own slots.
package calllimit

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits bound the calls that make a runtime work hard: RunPodSandbox, CreateContainer,
// StartContainer, RemoveContainer and RemovePodSandbox.
type Limits struct {
	// Slots for calls that run at a time. 0 is 4, near where runtimes stop getting faster.
	Slots int
	// Reserve is how many more may run for urgent pods (host network, critical), so that
	// the pod that repairs the network is never behind those that wait for it. 0 is 1.
	Reserve int
	// SlotTimeout after which a call that still runs gives its slot to the next. 0 is 5 s.
	SlotTimeout time.Duration
}

func (l Limits) withDefaults() (Limits, error) {
	if l.Slots < 0 || l.Reserve < 0 || l.SlotTimeout < 0 {
		return l, fmt.Errorf("limits %+v: no value may be negative; 0 is the default", l)
	}
	if l.Slots == 0 {
		l.Slots = 4
	}
	if l.Reserve == 0 {
		l.Reserve = 1
	}
	if l.SlotTimeout == 0 {
		l.SlotTimeout = 5 * time.Second
	}
	return l, nil
}

// Class of a call: who goes first when slots are few.
type Class int

const (
	// Usual calls begin something: a sandbox, a removal.
	Usual Class = iota
	// Begun calls go on with a pod that has a sandbox. They go before usual ones, so that the pods of a batch finish one
	// after another instead of all at the end. But pods can go on for ever, with thousands of init containers: once a
	// usual call has waited for usualPatience, one comes after every third of them.
	Begun
	// Idle calls tidy up behind pods that are gone: they go last, and one at a time, since no caller waits for them, but
	// others wait for the runtime that they would keep busy. One that has waited for idlePatience goes first.
	Idle
	// Urgent calls are for host-network and critical pods; they have the reserve.
	Urgent
)

const (
	usualPatience = 10 * time.Second
	idlePatience  = 30 * time.Second
	// mostInARow is how many calls that have begun go before a usual one that has waited.
	mostInARow = 3
)

// Limiter gives out slots for calls: in the order of asking within a class. A call
// that holds its slot longer than Limits.SlotTimeout loses it without being disturbed, so
// that calls which hang, a CNI plugin's for one, never stop the others for longer.
type Limiter struct {
	limits Limits

	mu sync.Mutex
	// normal and reserved count the slots in use of either kind.
	normal, reserved int
	// tidying says that an idle call has one of the normal slots.
	tidying bool
	// inARow counts the begun calls that were given a slot since the last usual one.
	inARow int
	// Waiters are channels that are closed when their slot is given.
	urgent, begun, usual, idle list.List

	inFlight, waiting prometheus.Gauge
	givenBack         prometheus.Counter
	waited            prometheus.Histogram
}

// New checks the limits and registers its metrics, unless reg is nil.
func New(limits Limits, reg prometheus.Registerer) (*Limiter, error) {
	limits, err := limits.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		limits: limits,
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "microlet_runtime_calls_in_flight",
			Help: "Bounded runtime calls that run now, those that lost their slot included.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "microlet_runtime_calls_waiting", Help: "Bounded runtime calls that wait for a slot.",
		}),
		givenBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_runtime_slots_lost_total",
			Help: "Runtime calls that took so long that they lost their slot.",
		}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "microlet_runtime_slot_wait_seconds", Help: "How long a bounded runtime call waited for its slot.",
			Buckets: prometheus.ExponentialBuckets(.001, 4, 8),
		}),
	}
	if reg == nil {
		return l, nil
	}
	for _, c := range []prometheus.Collector{l.inFlight, l.waiting, l.givenBack, l.waited} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the runtime's calls: %w", err)
		}
	}
	return l, nil
}

// slot is what a call holds: waiting, then one of the two kinds, then nothing.
type slot struct {
	given    chan struct{}
	asked    time.Time
	idle     bool
	reserved bool
	free     bool
}

// Acquire waits for a slot, or for the end of ctx. done must be called when the call
// ends; more than once is harmless.
func (l *Limiter) Acquire(ctx context.Context, class Class) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &slot{given: make(chan struct{}), asked: time.Now(), idle: class == Idle}
	queue := l.queue(class)
	l.mu.Lock()
	entry := queue.PushBack(p)
	l.serve()
	l.mu.Unlock()

	l.waiting.Inc()
	select {
	case <-p.given:
	case <-ctx.Done():
	}
	l.waiting.Dec()
	if err := ctx.Err(); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		select {
		case <-p.given: // given and cancelled at the same moment
			l.giveBack(p)
		default:
			queue.Remove(entry)
		}
		return nil, err
	}
	l.waited.Observe(time.Since(p.asked).Seconds())

	l.inFlight.Inc()
	timeout := time.AfterFunc(l.limits.SlotTimeout, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.giveBack(p) {
			l.givenBack.Inc()
		}
	})
	return sync.OnceFunc(func() {
		timeout.Stop()
		l.inFlight.Dec()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.giveBack(p)
	}), nil
}

func (l *Limiter) queue(class Class) *list.List {
	switch class {
	case Urgent:
		return &l.urgent
	case Begun:
		return &l.begun
	case Idle:
		return &l.idle
	default:
		return &l.usual
	}
}

// serve gives free slots to those who wait. The caller holds mu.
func (l *Limiter) serve() {
	for {
		var p *slot
		switch {
		case l.urgent.Len() > 0 && l.normal < l.limits.Slots:
			p = l.urgent.Remove(l.urgent.Front()).(*slot)
			l.normal++
		case l.urgent.Len() > 0 && l.reserved < l.limits.Reserve:
			p = l.urgent.Remove(l.urgent.Front()).(*slot)
			p.reserved = true
			l.reserved++
		case l.normal < l.limits.Slots:
			if p = l.next(); p == nil {
				return
			}
			l.normal++
		default:
			return
		}
		close(p.given)
	}
}

// next takes the call that goes next, and is not urgent, out of its queue; nil if there is none. The caller holds mu.
func (l *Limiter) next() *slot {
	idle := l.idle.Len() > 0 && !l.tidying
	switch {
	case idle && hasWaited(&l.idle, idlePatience):
	case l.inARow >= mostInARow && hasWaited(&l.usual, usualPatience):
		l.inARow = 0
		return l.usual.Remove(l.usual.Front()).(*slot)
	case l.begun.Len() > 0:
		l.inARow++
		return l.begun.Remove(l.begun.Front()).(*slot)
	case l.usual.Len() > 0:
		l.inARow = 0
		return l.usual.Remove(l.usual.Front()).(*slot)
	case !idle:
		return nil
	}
	l.tidying = true
	return l.idle.Remove(l.idle.Front()).(*slot)
}

// hasWaited reports whether the first of a queue has waited for so long.
func hasWaited(queue *list.List, patience time.Duration) bool {
	return queue.Len() > 0 && time.Since(queue.Front().Value.(*slot).asked) >= patience
}

// giveBack frees the slot of a call, once, and reports whether it did. The caller holds mu.
func (l *Limiter) giveBack(p *slot) bool {
	if p.free {
		return false
	}
	p.free = true
	if p.idle {
		l.tidying = false
	}
	if p.reserved {
		l.reserved--
	} else {
		l.normal--
	}
	l.serve()
	return true
}
