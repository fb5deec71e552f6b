package supervisor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fakeLauncher starts processes that behave as they are told, in virtual time.
type fakeLauncher struct {
	// behave is the life of a process; its return is its exit. nth counts a name's starts from 0.
	behave func(name string, nth int, p *fakeProcess) string

	mu     sync.Mutex
	starts map[string][]time.Time
	events []string
}

func (l *fakeLauncher) launch(s Spec) (process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starts == nil {
		l.starts = map[string][]time.Time{}
	}
	nth := len(l.starts[s.Name])
	l.starts[s.Name] = append(l.starts[s.Name], time.Now())
	l.events = append(l.events, "start "+s.Name)
	p := &fakeProcess{number: 100 + nth, received: make(chan note), ended: make(chan string, 1), signals: make(chan syscall.Signal, 8)}
	go func() {
		how := l.behave(s.Name, nth, p)
		l.mu.Lock()
		l.events = append(l.events, "end "+s.Name)
		l.mu.Unlock()
		p.ended <- how
	}()
	return p, nil
}

type fakeProcess struct {
	number   int
	received chan note
	ended    chan string
	signals  chan syscall.Signal
}

func (p *fakeProcess) pid() int              { return p.number }
func (p *fakeProcess) notes() <-chan note    { return p.received }
func (p *fakeProcess) exited() <-chan string { return p.ended }
func (p *fakeProcess) close() error          { return nil }
func (p *fakeProcess) signal(s syscall.Signal) error {
	p.signals <- s
	return nil
}

// serve is the life of a good process: ready, feeding, and gone at SIGTERM.
func (p *fakeProcess) serve() string {
	p.received <- note{ready: true}
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			p.received <- note{watchdog: true}
		case s := <-p.signals:
			return "signal: " + s.String()
		}
	}
}

// hang is the life of a process that is stopped: only SIGKILL reaches it.
func (p *fakeProcess) hang() string {
	for s := range p.signals {
		if s == syscall.SIGKILL {
			break
		}
	}
	return "signal: killed"
}

func testSupervisor(t *testing.T, l *fakeLauncher, o Options) *Supervisor {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	o.Output = io.Discard
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{options: o}
	s.keep(l, newMetrics(nil))
	return s
}

func names(list ...string) []Spec {
	var specs []Spec
	for _, n := range list {
		specs = append(specs, Spec{Name: n})
	}
	return specs
}

func TestRestartsOfACrashingProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(_ string, nth int, p *fakeProcess) string {
			if nth == 6 {
				time.Sleep(3 * time.Second) // long enough to be forgiven
			}
			if nth == 8 {
				return p.serve()
			}
			return "exit status 1"
		}}
		s := testSupervisor(t, l, Options{Specs: names("pleg")})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		var delays []time.Duration
		for i := 1; i < len(l.starts["pleg"]); i++ {
			delays = append(delays, l.starts["pleg"][i].Sub(l.starts["pleg"][i-1]).Round(time.Millisecond)/time.Millisecond)
		}
		if want := []time.Duration{0, 100, 200, 400, 800, 1000, 3000, 100}; !slices.Equal(delays, want) {
			t.Errorf("milliseconds between starts are %d, want %d", delays, want)
		}
		p := s.Processes()[0]
		if p.Restarts != 8 || p.State != Ready || p.LastExit != "exit status 1" || p.PID != 108 {
			t.Errorf("account is %+v", p)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestHungProcessIsKilledAndBackWithin15s(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hungAt time.Time
		l := &fakeLauncher{behave: func(_ string, nth int, p *fakeProcess) string {
			if nth > 0 {
				return p.serve()
			}
			p.received <- note{ready: true}
			time.Sleep(time.Minute - 55*time.Second)
			p.received <- note{watchdog: true}
			hungAt = time.Now()
			return p.hang()
		}}
		s := testSupervisor(t, l, Options{Specs: names("pleg"), Watchdog: 10 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		starts := l.starts["pleg"]
		if len(starts) != 2 {
			t.Fatalf("started %d times, want 2", len(starts))
		}
		if after := starts[1].Sub(hungAt); after < 10*time.Second || after > 11*time.Second {
			t.Errorf("back %v after its last sign of life, want 10 to 11 s", after)
		}
		if p := s.Processes()[0]; p.LastExit != "watchdog: silent for 10s" || p.Restarts != 1 || p.State != Ready {
			t.Errorf("account is %+v", p)
		}
		cancel()
		<-done
	})
}

func TestWatchdogOffLetsAHungProcessBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(_ string, _ int, p *fakeProcess) string {
			p.received <- note{ready: true}
			return p.hang()
		}}
		s := testSupervisor(t, l, Options{Specs: names("pleg")})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if p := s.Processes()[0]; p.Restarts != 0 || p.State != Ready {
			t.Errorf("account is %+v", p)
		}
		cancel()
		<-done
	})
}

func TestAHungProcessDelaysNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(name string, _ int, p *fakeProcess) string {
			if name == "bus" {
				return p.hang()
			}
			time.Sleep(100 * time.Millisecond)
			return p.serve()
		}}
		ready := make(chan string, 1)
		s := testSupervisor(t, l, Options{Specs: names("bus", "podsync", "pleg"), OnReady: func(status string) { ready <- status }})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		if got := <-ready; got != "3 processes, not ready yet: bus" {
			t.Errorf("told %q", got)
		}
		if took := time.Since(began); took > s.options.ReadyWait+tick+time.Second {
			t.Errorf("told after %v", took)
		}
		for name, by := range map[string]time.Duration{"bus": 0, "podsync": time.Second, "pleg": 1100 * time.Millisecond} {
			if at := l.starts[name][0].Sub(began); at != by {
				t.Errorf("%s was started after %v, want %v", name, at, by)
			}
		}
		cancel()
		<-done
	})
}

func TestStopInStages(t *testing.T) {
	specs := []Spec{{Name: "bus", StopStage: 2}, {Name: "podsync", StopStage: 1}, {Name: "pleg"}, {Name: "nodestatus"}}
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(_ string, _ int, p *fakeProcess) string {
			p.serve()
			time.Sleep(time.Second)
			return "exit status 0"
		}}
		s := testSupervisor(t, l, Options{Specs: specs})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(5 * time.Second)
		cancel()
		began := time.Now()
		<-done
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the stop took %v, want 1 s for each of 3 stages", took)
		}
		ends := l.events[4:]
		slices.Sort(ends[:2])
		if want := []string{"end nodestatus", "end pleg", "end podsync", "end bus"}; !slices.Equal(ends, want) {
			t.Errorf("ended as %v, want %v", ends, want)
		}
		for _, p := range s.Processes() {
			if p.State != Stopped || p.PID != 0 {
				t.Errorf("account is %+v", p)
			}
		}
	})
	t.Run("hung", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLauncher{behave: func(_ string, _ int, p *fakeProcess) string {
				p.received <- note{ready: true}
				return p.hang()
			}}
			s := testSupervisor(t, l, Options{Specs: specs, Watchdog: 10 * time.Second})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			time.Sleep(time.Second)
			cancel()
			began := time.Now()
			<-done
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("the stop took %v, want less than 15 s", took)
			}
		})
	})
}

func TestAProcessThatCannotBeStartedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &brokenLauncher{}
		o := Options{Specs: names("pleg"), Log: slog.New(slog.DiscardHandler)}
		if err := o.complete(); err != nil {
			t.Fatal(err)
		}
		k := newKeeper(o.Specs[0], &o, l, newMetrics(nil))
		go k.run()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if l.tries < 10 {
			t.Errorf("tried %d times in 10 s", l.tries)
		}
		if p := k.snapshot(); p.LastExit != "no such program" || p.State != Backoff {
			t.Errorf("account is %+v", p)
		}
		close(k.stopping)
		<-k.done
	})
}

type brokenLauncher struct{ tries int }

func (l *brokenLauncher) launch(Spec) (process, error) {
	l.tries++
	return nil, errors.New("no such program")
}
