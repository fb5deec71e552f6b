package supervisor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Supervisor keeps the processes of its options.
type Supervisor struct {
	options Options
	keepers []*keeper
}

// New returns a supervisor that has started nothing yet.
func New(o Options) (*Supervisor, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Supervisor{options: o}
	m := newMetrics(o.Metrics)
	s.keep(newSpawner(&s.options, m), m)
	return s, nil
}

func (s *Supervisor) keep(l launcher, m *metrics) {
	for _, spec := range s.options.Specs {
		s.keepers = append(s.keepers, newKeeper(spec, &s.options, l, m))
	}
}

// Processes is the account of all processes, in start order.
func (s *Supervisor) Processes() []Process {
	out := make([]Process, 0, len(s.keepers))
	for _, k := range s.keepers {
		out = append(out, k.snapshot())
	}
	return out
}

// Run starts the processes in order and keeps them until the context ends; then it stops them, and
// returns when none is left. It is called once.
func (s *Supervisor) Run(ctx context.Context) error {
	readyBy := time.Now().Add(s.options.ReadyWait)
	started := s.start(ctx)
	s.watch(ctx, readyBy)
	s.stop(started)
	return nil
}

// start starts each process when the one before is ready, or has had its time: one that hangs must
// not keep the rest from the node. Of a process with several services the first one counts, since it is the one in the
// order, and the others may wait for what starts later. It returns those that were started.
func (s *Supervisor) start(ctx context.Context) []*keeper {
	for i, k := range s.keepers {
		if ctx.Err() != nil {
			return s.keepers[:i]
		}
		s.options.OnTurn()
		go k.run()
		if i == len(s.keepers)-1 {
			break
		}
		wait := time.NewTimer(s.options.StartWait)
		select {
		case <-k.begun:
		case <-wait.C:
			k.log.Warn("process is not ready yet; the next one is started", "waited", s.options.StartWait)
		case <-ctx.Done():
		}
		wait.Stop()
	}
	return s.keepers
}

// watch runs until the context ends.
func (s *Supervisor) watch(ctx context.Context, readyBy time.Time) {
	t := time.NewTimer(untilLook(time.Now()))
	defer t.Stop()
	notified := false
	for {
		s.options.OnTurn()
		if missing := s.notReady(); !notified && (len(missing) == 0 || time.Now().After(readyBy)) {
			notified = true
			status := fmt.Sprintf("%d processes", len(s.keepers))
			if len(missing) > 0 {
				status += ", not ready yet: " + strings.Join(missing, ", ")
			}
			s.options.OnReady(status)
		}
		wake := make(<-chan struct{})
		if !notified {
			wake = s.nextReady()
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			t.Reset(untilLook(time.Now()))
		case <-wake:
		}
	}
}

// nextReady is closed when the first process that has not been ready yet is.
func (s *Supervisor) nextReady() <-chan struct{} {
	for _, k := range s.keepers {
		select {
		case <-k.firstReady:
		default:
			return k.firstReady
		}
	}
	return nil
}

// notReady names the processes that have never been ready.
func (s *Supervisor) notReady() []string {
	var names []string
	for _, k := range s.keepers {
		select {
		case <-k.firstReady:
		default:
			names = append(names, k.missing()...)
		}
	}
	return names
}

// missing names the services of the process that are not ready.
func (k *keeper) missing() []string {
	account := k.snapshot()
	if len(account.Services) == 0 {
		return []string{account.Name}
	}
	var names []string
	for _, s := range account.Services {
		if s.State != Ready {
			names = append(names, s.Name)
		}
	}
	return names
}

// stop ends the processes stage by stage. A stage has its time and then the next begins too; when
// the whole takes too long, what is left is killed.
func (s *Supervisor) stop(started []*keeper) {
	total := time.AfterFunc(s.options.StopTotal, func() {
		for _, k := range started {
			close(k.kill)
		}
	})
	defer total.Stop()
	var stages []int
	for _, k := range started {
		stages = append(stages, k.spec.StopStage)
	}
	slices.Sort(stages)
	for _, stage := range slices.Compact(stages) {
		end := time.After(s.options.StageTimeout)
		var group []*keeper
		for _, k := range started {
			if k.spec.StopStage == stage {
				close(k.stopping)
				group = append(group, k)
			}
		}
		for _, k := range group {
			select {
			case <-k.done:
				continue
			case <-end:
			}
			break // the stage's time is over for all of it
		}
	}
	for _, k := range started {
		for waiting := true; waiting; {
			select {
			case <-k.done:
				waiting = false
			case <-time.After(tick):
				s.options.OnTurn()
			}
		}
	}
}

// metrics count what the supervisor had to do.
type metrics struct {
	restarts, watchdog, refused *prometheus.CounterVec
	stuck, idle                 *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	vec := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"service"})
		if r != nil {
			r.MustRegister(c)
		}
		return c
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"service"})
		if r != nil {
			r.MustRegister(g)
		}
		return g
	}
	return &metrics{
		stuck: gauge("microlet_supervisor_stuck_processes", "Processes that were killed and do not end."),
		idle: gauge("microlet_supervisor_idle_processes",
			"Processes that run on demand and have not been started yet, because nothing needs them."),
		restarts: vec("microlet_supervisor_restarts_total", "Starts of a process after its first."),
		watchdog: vec("microlet_supervisor_watchdog_kills_total", "Processes killed because they hung."),
		refused: vec("microlet_supervisor_notifications_refused_total",
			"Notifications that did not come from the process itself."),
	}
}
