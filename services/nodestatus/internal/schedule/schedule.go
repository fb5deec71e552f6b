// Package schedule runs the recurring jobs of a service from one loop.
//
// The loop decides only what is due. Each job runs in its own goroutine, with a deadline, and never twice at a time.
// So no job blocks the loop, and a loop that hangs is a fault of the service itself, which the watchdog detects.
package schedule

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/signal"
)

// turn is the period of the loop when nothing is due.
const turn = time.Second

// Never is what a job returns that is not to be run again unless it is kicked.
const Never = time.Duration(math.MaxInt64)

// Job is something to do again and again.
type Job struct {
	Name string
	// Deadline bounds one run.
	Deadline time.Duration
	// Run does the job and returns the pause until its next run.
	Run func(ctx context.Context) time.Duration
}

type state struct {
	job     Job
	running bool
	kicked  bool      // while it ran
	next    time.Time // zero is never
}

// Loop runs jobs. Make it with New.
type Loop struct {
	turned func()
	kicks  signal.Signal

	mu   sync.Mutex
	jobs map[string]*state
}

// New returns a loop without jobs. turned is called in each round, at least once a second.
func New(turned func()) *Loop {
	return &Loop{turned: turned, kicks: signal.New(), jobs: map[string]*state{}}
}

// Add adds jobs, each due at once. It is called before Run. The loop exists before its jobs so that one of them can
// kick another.
func (l *Loop) Add(jobs ...Job) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, job := range jobs {
		if job.Name == "" || job.Run == nil || job.Deadline <= 0 {
			return fmt.Errorf("job %q needs a name, a function and a deadline", job.Name)
		}
		if _, twice := l.jobs[job.Name]; twice {
			return fmt.Errorf("job %q is there twice", job.Name)
		}
		l.jobs[job.Name] = &state{job: job, next: now}
	}
	return nil
}

// Kick makes a job due now; one that runs is run once more when it ends. It never blocks, and may be
// called by a job.
func (l *Loop) Kick(name string) {
	l.mu.Lock()
	if s := l.jobs[name]; s != nil {
		if s.running {
			s.kicked = true
		} else {
			s.next = time.Now()
		}
	}
	l.mu.Unlock()
	l.kicks.Set()
}

// Run runs the jobs until ctx ends, and returns when all of them have ended.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.kicks:
		case <-timer.C:
		}
		l.turned()
		timer.Reset(l.startDue(ctx, &running))
	}
}

// startDue starts what is due, and returns the pause until something else is, or until the next round.
func (l *Loop) startDue(ctx context.Context, running *sync.WaitGroup) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, pause := time.Now(), turn
	for _, s := range l.jobs {
		switch {
		case s.running || s.next.IsZero():
		case !now.Before(s.next):
			s.running = true
			running.Go(func() { l.run(ctx, s) })
		default:
			pause = min(pause, s.next.Sub(now))
		}
	}
	return pause
}

func (l *Loop) run(parent context.Context, s *state) {
	ctx, cancel := context.WithTimeout(parent, s.job.Deadline)
	defer cancel()
	pause := s.job.Run(ctx)
	l.mu.Lock()
	s.running = false
	switch {
	case s.kicked:
		s.next = time.Now()
	case pause == Never:
		s.next = time.Time{}
	default:
		s.next = time.Now().Add(pause)
	}
	s.kicked = false
	l.mu.Unlock()
	l.kicks.Set()
}
