package diskusage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/signal"
)

const (
	// DefaultPeriod is the kubelet's volumeStatsAggPeriod.
	DefaultPeriod = time.Minute
	// DefaultBudget is 0.5 % of a processor with warm caches, and 3 % with cold ones.
	DefaultBudget = 200_000

	// newWithin is how long a new directory may wait, so that those of several new pods share a child.
	newWithin = 10 * time.Second
	// linger is how long an idle child lives.
	linger = 2 * time.Second
	// silentAfter is when another child takes the directories of other devices.
	silentAfter = time.Second
	// hungAfter is when a child is abandoned. With the idle I/O class, a call may wait for long on a busy disk.
	hungAfter = 30 * time.Second
	// maxChildren bounds the children, those that were killed and cannot end included.
	maxChildren = 6
	// maxRest bounds how long a directory or device rests that failed again and again.
	maxRest = 30 * time.Minute
	// stopWithin is how long Run waits for its children in the end.
	stopWithin = time.Second
)

// Config says what a Measurer may use.
type Config struct {
	// Period is how often each directory is measured: the kubelet's volumeStatsAggPeriod. 0 means DefaultPeriod.
	Period time.Duration
	// Budget is how many entries of directories all walks may look at in a minute. 0 means DefaultBudget. If it is
	// too low for all that is tracked, figures grow older than the period.
	Budget int
	Log    *slog.Logger
	// Metrics are counted.
	Metrics Metrics

	// Tests set these.
	start        func() (*childpool.Child, error)
	mounts       func() (childpool.MountPoints, error)
	silent, hung time.Duration
}

// Measurer measures directories in child processes. Its methods may be called by several goroutines.
//
// The program must call RunChild first of all, since the children are of its own binary.
type Measurer struct {
	config  Config
	metrics *Metrics
	pool    *childpool.Pool
	// tracked has one token when Track has changed what is wanted.
	tracked signal.Signal
	events  chan event
	// stopped is closed when events are no longer read.
	stopped chan struct{}

	mu           sync.Mutex
	wanted       map[Dir]bool
	measurements map[Dir]Measurement
	// stuck are directories that do not answer. answered is when a child has answered last, about any directory.
	stuck    map[Dir]bool
	answered time.Time
}

// event is the answer of a child, or why there is none.
type event struct {
	from   *worker
	answer *answer
	err    error
}

// New returns a Measurer that tracks nothing yet.
func New(c Config) *Measurer {
	if c.Period <= 0 {
		c.Period = DefaultPeriod
	}
	if c.Budget <= 0 {
		c.Budget = DefaultBudget
	}
	if c.silent == 0 {
		c.silent, c.hung = silentAfter, hungAfter
	}
	m := &Measurer{
		config:  c,
		metrics: &c.Metrics,
		pool: childpool.New(childpool.Options{
			Program: program, Log: c.Log, Start: c.start, Mounts: c.mounts,
			Bounds: childpool.Bounds{
				Children: maxChildren, Quick: 1, Slow: c.silent, Lane: 1, Foreign: maxChildren, Idle: linger,
			},
		}),
		tracked:      signal.New(),
		events:       make(chan event),
		stopped:      make(chan struct{}),
		measurements: map[Dir]Measurement{},
	}
	m.metrics.begin()
	return m
}

// Track says which directories to measure from now on. The figures of others are dropped. A directory that cannot be
// one is an error, and the others are tracked all the same.
func (m *Measurer) Track(dirs []Dir) error {
	wanted := make(map[Dir]bool, len(dirs))
	var errs []error
	for _, d := range dirs {
		if err := d.validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		wanted[d] = true
	}
	m.mu.Lock()
	m.wanted = wanted
	for d := range m.measurements {
		if !wanted[d] {
			delete(m.measurements, d)
		}
	}
	m.mu.Unlock()
	m.tracked.Set()
	return errors.Join(errs...)
}

// Measurement returns the last figure of a directory. There is none before its first walk has ended, and none if it
// does not exist. If it cannot be read any more, the figure grows old.
func (m *Measurer) Measurement(d Dir) (Measurement, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.measurements[d]
	f.Late = ok && m.late(d, f.Time)
	return f, ok
}

// late reports whether a figure of this time is late. The next walk is due within a period, and a child that does not
// answer then hangs. So if no child has answered for longer, nothing is measured.
func (m *Measurer) late(d Dir, figure time.Time) bool {
	now := time.Now()
	return now.Sub(figure) > m.config.Period && !m.stuck[d] &&
		now.Sub(m.answered) <= m.config.Period+m.config.hung
}

// progress takes over which directories do not answer, and when a child has answered last.
func (m *Measurer) progress(stuck map[Dir]bool, answered time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuck, m.answered = stuck, answered
}

// Run measures until the context ends; that is no error. It is called once.
func (m *Measurer) Run(ctx context.Context) error {
	defer close(m.stopped)
	s := newSchedule(m)
	defer s.stop()
	for {
		s.dispatch(ctx, time.Now())
		timer := time.NewTimer(max(0, time.Until(s.wake(time.Now()))))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-m.tracked:
			s.track(m.snapshot(), time.Now())
		case e := <-m.events:
			s.handle(e, time.Now())
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (m *Measurer) snapshot() map[Dir]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wanted // Track never changes it, but puts another in its place
}

// set stores the figure of a directory that is still wanted, or drops that of one that does not exist.
func (m *Measurer) set(d Dir, f *Measurement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case f == nil:
		delete(m.measurements, d)
	case m.wanted[d]:
		m.measurements[d] = *f
	}
}

// Oldest is the age of the oldest figure, in seconds.
func (m *Measurer) Oldest() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	age := time.Duration(0)
	for _, f := range m.measurements {
		age = max(age, now.Sub(f.Time))
	}
	return age.Seconds()
}

// ask asks a child for a slice. The answer comes as an event, until Run has returned.
func (m *Measurer) ask(ctx context.Context, w *worker, q *request) {
	a, err := q.ask(ctx, w.child, m.config.hung)
	select {
	case m.events <- event{from: w, answer: a, err: err}:
	case <-m.stopped:
	}
}
