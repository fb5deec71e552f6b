package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/tracing/spantest"
	"github.com/microlet/microlet/services/prober/internal/probe"
)

// target is a container as the probes see it.
type target struct {
	mu      sync.Mutex
	result  probe.Outcome
	err     error
	takes   time.Duration
	times   []time.Time
	running int
	atOnce  int
}

func (g *target) Probe(ctx context.Context, _ probe.Target) (probe.Result, error) {
	g.mu.Lock()
	g.times = append(g.times, time.Now())
	g.running++
	g.atOnce = max(g.atOnce, g.running)
	takes, v, err := g.takes, g.result, g.err
	g.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	return probe.Result{Outcome: v}, err
}

func (g *target) set(v probe.Outcome, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.result, g.err = v, err
}

func (g *target) probed() []time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.times)
}

// book is what a worker reported.
type book struct {
	mu      sync.Mutex
	records []Record
	events  []string
	notRun  int
}

func (b *book) Record(r Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
}
func (b *book) Counted(Outcome, time.Duration) {}
func (b *book) Event(_ *ProbedContainer, reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, reason+": "+message)
}
func (b *book) NotRun(error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notRun++
}

func (b *book) last() Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.records) == 0 {
		return Record{}
	}
	return b.records[len(b.records)-1]
}

// scene is one worker in virtual time.
type scene struct {
	*Worker
	target *target
	book   *book
	facts  ProbedContainer
	stop   func()
}

func begin(kind Kind, p *v1.Probe, resume Record, spread bool) *scene {
	s := &scene{target: &target{result: probe.Success}, book: &book{}, facts: ProbedContainer{
		Pod: &v1.Pod{}, Container: &v1.Container{Name: "c"}, Probe: p,
		ContainerID: "one", Running: true, StartTime: time.Now(), Started: kind != Startup,
	}}
	f := s.facts
	s.Worker = New(Options{
		Kind:     kind,
		Prober:   s.target,
		Reporter: s.book,
		Resume:   resume,
		Spread:   spread,
		Log:      slog.New(slog.DiscardHandler),
	}, &f)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	s.stop = func() { cancel(); running.Wait() }
	return s
}

// change replaces the facts.
func (s *scene) change(f func(*ProbedContainer)) {
	f(&s.facts)
	facts := s.facts
	s.Update(&facts)
	synctest.Wait()
}

func (s *scene) container(id string) {
	s.change(func(f *ProbedContainer) { f.ContainerID, f.StartTime = id, time.Now() })
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func every(seconds, failures int32) *v1.Probe {
	return &v1.Probe{PeriodSeconds: seconds, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: failures}
}

func TestThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(Liveness, every(10, 3), Record{}, false)
		defer s.stop()
		pass(25 * time.Second)
		if r := s.book.last(); r.Result != success || r.Run != 1 {
			t.Fatalf("after two successes: %+v", r)
		}
		s.target.set(probe.Failure, nil)
		pass(20 * time.Second)
		if r := s.book.last(); r.Result != success || r.Last != failure || r.Run != 2 {
			t.Fatalf("after two failures: %+v", r)
		}
		pass(10 * time.Second)
		if r := s.book.last(); r.Result != failure || r.Run != 3 {
			t.Fatalf("after three failures: %+v", r)
		}
		n := len(s.target.probed())
		pass(time.Minute)
		if got := len(s.target.probed()); got != n {
			t.Fatalf("probed %d times after the result that ends the container", got-n)
		}
		s.container("two")
		pass(14 * time.Second)
		if r := s.book.last(); r.ContainerID != "two" || r.Result != none || r.Run != 1 {
			t.Fatalf("of the next container: %+v", r)
		}
		if want := 4; len(s.book.events) != want ||
			!strings.HasPrefix(s.book.events[0], "Unhealthy: Liveness probe failed: ") {
			t.Fatalf("events %q", s.book.events)
		}
	})
}

func TestWhatCannotBeRunIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(Liveness, every(1, 1), Record{}, false)
		defer s.stop()
		s.target.set(0, fmt.Errorf("%w: podsync restarts", probe.ErrUnreachable))
		pass(20500 * time.Millisecond)
		if r := s.book.last(); r.Result != none || s.book.notRun < 19 || len(s.book.events) != 0 {
			t.Fatalf("record %+v, %d not run, events %q", r, s.book.notRun, s.book.events)
		}
		s.target.set(0, errors.New("port \"web\" not found"))
		before := len(s.target.probed())
		pass(time.Second)
		if r := s.book.last(); r.Result != none {
			t.Fatalf("an error became the result %+v", r)
		}
		if got := len(s.target.probed()) - before; got != tries {
			t.Fatalf("tried %d times", got)
		}
		if want := `Unhealthy: Liveness probe errored and resulted in unknown state: port "web" not found`; !slices.Equal(
			s.book.events, []string{want}) {
			t.Fatalf("events %q", s.book.events)
		}
	})
}

func TestRhythm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := every(5, 3)
		p.InitialDelaySeconds = 7
		s := begin(Readiness, p, Record{}, false)
		defer s.stop()
		pass(20 * time.Second)
		var at []time.Duration
		for _, when := range s.target.probed() {
			at = append(at, when.Sub(began))
		}
		if want := []time.Duration{7 * time.Second, 12 * time.Second, 17 * time.Second}; !slices.Equal(at, want) {
			t.Fatalf("probed at %v, want %v", at, want)
		}
	})
}

// A probe that takes longer than its period neither piles up nor runs without a pause in between.
func TestASlowProbeSkipsTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(Readiness, every(1, 3), Record{}, false)
		defer s.stop()
		s.target.mu.Lock()
		s.target.takes = 2500 * time.Millisecond
		s.target.mu.Unlock()
		pass(30 * time.Second)
		if n := len(s.target.probed()); n < 10 || n > 11 || s.target.atOnce != 1 {
			t.Fatalf("probed %d times, %d at once", n, s.target.atOnce)
		}
	})
}

func TestStartupStandsInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(Readiness, every(1, 3), Record{}, false)
		defer s.stop()
		s.change(func(f *ProbedContainer) { f.Started = false })
		n := len(s.target.probed())
		pass(10 * time.Second)
		if got := len(s.target.probed()); got != n {
			t.Fatalf("probed %d times before the container had started", got-n)
		}
		s.change(func(f *ProbedContainer) { f.Started = true })
		pass(time.Second)
		if got := len(s.target.probed()); got == n {
			t.Fatal("not probed after the container had started")
		}
	})
}

func TestAPodThatEndsKeepsReadinessOnly(t *testing.T) {
	for kind, goesOn := range map[Kind]bool{Readiness: true, Liveness: false, Startup: false} {
		synctest.Test(t, func(t *testing.T) {
			p := every(1, 100)
			s := begin(kind, p, Record{}, false)
			defer s.stop()
			s.target.set(probe.Failure, nil)
			pass(5 * time.Second)
			s.change(func(f *ProbedContainer) { f.Ending = true })
			n := len(s.target.probed())
			pass(5 * time.Second)
			if got := len(s.target.probed()) > n; got != goesOn || n == 0 {
				t.Fatalf("%s is probed while the pod ends: %v", kind, got)
			}
		})
	}
}

// A worker that takes over counts on and keeps the rhythm.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := begin(Liveness, every(10, 3), Record{}, false)
		before.target.set(probe.Failure, nil)
		pass(25 * time.Second) // failures at 10 s and 20 s
		before.stop()
		r := before.book.last()
		if r.Run != 2 {
			t.Fatalf("counted %+v", r)
		}
		last := r.LastStart
		pass(3 * time.Second)
		s := begin(Liveness, every(10, 3), r, true)
		defer s.stop()
		s.target.set(probe.Failure, nil)
		pass(3 * time.Second)
		if got := s.target.probed(); len(got) != 1 || !got[0].Equal(last.Add(10*time.Second)) {
			t.Fatalf("probed at %v, want one period after %v", got, last)
		}
		if got := s.book.last(); got.Result != failure {
			t.Fatalf("the third failure in a row gives %+v", got)
		}
	})
}

// A worker that takes over on the way to another result does not wait for the next tick of the rhythm,
// and one that has nothing to find out does.
func TestResumeOnTheWay(t *testing.T) {
	for last, wait := range map[Outcome]time.Duration{failure: 0, success: 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			r := Record{
				ContainerID: "one",
				Result:      success,
				Last:        last,
				Run:         1,
				LastStart:   began.Add(-13 * time.Second),
			}
			s := begin(Liveness, every(10, 3), r, true)
			defer s.stop()
			pass(28 * time.Second)
			var at []time.Duration
			for _, when := range s.target.probed() {
				at = append(at, when.Sub(began))
			}
			if want := []time.Duration{wait, wait + 10*time.Second, wait + 20*time.Second}; !slices.Equal(at, want) {
				t.Errorf("last %v: probed at %v, want %v", last, at, want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := Record{ContainerID: "one", Result: success, Last: failure, Run: 1, LastStart: began.Add(-3 * time.Second)}
		s := begin(Liveness, every(10, 3), r, true)
		defer s.stop()
		pass(8 * time.Second)
		if got := s.target.probed(); len(got) != 1 || got[0].Sub(began) != 7*time.Second {
			t.Errorf("probed at %v, want a whole period after the last", got)
		}
	})
}

// After the clock was set back, neither the probe before nor the container's start lies so far in the future that
// nothing is probed until that time comes.
func TestResumeAfterTheClockWasSetBack(t *testing.T) {
	const back = 2 * time.Hour
	for _, kind := range []Kind{Readiness, Liveness, Startup} {
		for name, r := range map[string]Record{
			"success": {ContainerID: "one", Result: success, Last: success, Run: 1},
			"failing": {ContainerID: "one", Result: success, Last: failure, Run: 1},
			"new":     {},
		} {
			if kind == Startup {
				r.Result = none
			}
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					if r.ContainerID != "" {
						r.LastStart = began.Add(back)
					}
					settings := every(10, 3)
					settings.InitialDelaySeconds = 5
					s := begin(kind, settings, r, true)
					defer s.stop()
					s.change(
						func(f *ProbedContainer) { f.StartTime = began.Add(back - time.Minute); f.Started = kind != Startup },
					)
					s.target.set(probe.Failure, nil)
					pass(16 * time.Second)
					at := s.target.probed()
					if len(at) == 0 || at[0].Sub(began) < 5*time.Second {
						t.Fatalf("probed at %v, want the first after the initial delay and within a period", at)
					}
					if got := s.book.last(); name == "failing" && got.Run != 2 {
						t.Errorf("counted %+v, want the failure before counted on", got)
					}
				})
			})
		}
	}
}

// Many that begin at once are spread over their period.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		seconds := map[int]int{}
		var all []*scene
		for range 200 {
			all = append(all, begin(Readiness, every(10, 3), Record{}, true))
		}
		pass(10 * time.Second)
		for _, s := range all {
			s.stop()
			seconds[int(s.target.probed()[0].Sub(began)/time.Second)]++
		}
		for second, n := range seconds {
			if n > 50 {
				t.Errorf("%d of 200 first probes in second %d", n, second)
			}
		}
	})
}

// None of those that begin at once waits for more than its period.
func TestSpreadWithinAPeriod(t *testing.T) {
	for _, kind := range []Kind{Readiness, Liveness, Startup} {
		synctest.Test(t, func(t *testing.T) {
			for range 200 {
				s := begin(kind, every(10, 3), Record{}, true)
				s.change(func(f *ProbedContainer) { f.Started = kind != Startup })
				pass(10 * time.Second)
				s.stop()
				if len(s.target.probed()) == 0 {
					t.Fatalf("%s: not probed within a period", kind)
				}
			}
		})
	}
}

// However probes end, and however replicas die and take over, the result that restarts a container never comes without
// failureThreshold failures in a row of this very container id.
func TestNeverARestartWithoutEnoughFailures(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			threshold := int32(1 + random.IntN(4))
			history := map[string]int32{} // failures in a row by container id, as they truly were
			kind := Liveness
			if random.IntN(2) == 0 {
				kind = Startup
			}
			id, record := "id-0", Record{}
			results := 0
			for step := range 40 {
				s := begin(kind, every(1, threshold), record, random.IntN(2) == 0)
				if id != "one" {
					s.container(id)
				}
				for range random.IntN(12) {
					outcome, err := probe.Success, error(nil)
					switch random.IntN(4) {
					case 0, 1:
						outcome = probe.Failure
					case 2:
						err = []error{probe.ErrUnreachable, errors.New("broken")}[random.IntN(2)]
					}
					before := s.book.last()
					counted := len(s.book.records)
					s.target.set(outcome, err)
					probes := len(s.target.probed())
					pass(time.Second)
					if n := len(s.target.probed()) - probes; n > 0 && err == nil {
						if outcome == probe.Failure {
							history[id] += int32(n)
						} else {
							history[id] = 0
						}
					}
					r := s.book.last()
					if len(s.book.records) > counted && r.Result == failure &&
						(before.Result != failure || before.ContainerID != r.ContainerID) {
						results++
						if r.ContainerID != id || history[id] < threshold {
							t.Fatalf("seed %d, step %d: result on %s after %d failures in a row of %s, threshold %d",
								seed, step, r.ContainerID, history[id], id, threshold)
						}
					}
					if r.ContainerID == id {
						record = r
					}
				}
				s.stop()
				if random.IntN(3) == 0 {
					id = fmt.Sprintf("id-%d", step+1)
				}
			}
			if results == 0 && kind == Liveness && threshold == 1 {
				t.Errorf("seed %d: no result at all: the property was not tried", seed)
			}
		})
	}
}

// TestTheProbesThatAPodWaitsForAreInItsTrace, and those of a pod that is ready are not, nor those that fail for ever.
func TestTheProbesThatAPodWaitsForAreInItsTrace(t *testing.T) {
	for name, test := range map[string]struct {
		outcomes []probe.Outcome
		want     int
	}{
		"ready at once": {[]probe.Outcome{probe.Success, probe.Success, probe.Success}, 1},
		"ready later":   {[]probe.Outcome{probe.Failure, probe.Failure, probe.Success, probe.Success}, 3},
		"never":         {slices.Repeat([]probe.Outcome{probe.Failure}, 30), tracedProbes},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := spantest.New(t)
			ctx, round := r.Begin(t.Context(), "syncPod")
			g := &target{}
			w := New(Options{
				Kind: Readiness, Prober: g, Reporter: &book{}, Tracer: r.Tracer, Log: slog.New(slog.DiscardHandler),
			}, &ProbedContainer{
				Pod: &v1.Pod{}, Container: &v1.Container{Name: "c"}, ContainerID: "one", Running: true,
				Probe:   &v1.Probe{PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1},
				Started: true, StartTime: time.Now(), Trace: tracing.ParentOf(ctx),
			})
			round.End(nil)
			w.look()
			for _, o := range test.outcomes {
				g.set(o, nil)
				w.probe(t.Context(), w.current())
			}
			spans := r.Spans(t)
			got := spantest.Named(spans, "doProbe")
			if len(got) != test.want {
				t.Fatalf("%s: recorded %d probes of %d, want %d", name, len(got), len(test.outcomes), test.want)
			}
			parent := spantest.Named(spans, "syncPod")[0]
			result := "failure"
			if test.outcomes[0] == probe.Success {
				result = "success"
			}
			if a := got[0].Attributes; got[0].Parent != parent.ID || a["microlet.probe.kind"] != "readiness" ||
				a["k8s.container.name"] != "c" || a["microlet.probe.result"] != result {
				t.Errorf("%s: recorded %+v", name, got[0])
			}
		})
	}
}
