package supervisor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fakeLauncher starts processes that behave as the test wants, in virtual time.
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
	p := &fakeProcess{
		number:   100 + nth,
		received: make(chan note),
		ended:    make(chan string, 1),
		signals:  make(chan syscall.Signal, 8),
	}
	go func() {
		how := l.behave(s.Name, nth, p)
		l.mu.Lock()
		l.events = append(l.events, "end "+s.Name)
		l.mu.Unlock()
		p.ended <- how
	}()
	return p, nil
}

// started is how often a name was started.
func (l *fakeLauncher) started(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.starts[name])
}

type fakeProcess struct {
	number   int
	received chan note
	ended    chan string
	signals  chan syscall.Signal
	held     atomic.Bool // dead, and does not end
}

func (p *fakeProcess) pid() int              { return p.number }
func (p *fakeProcess) notes() <-chan note    { return p.received }
func (p *fakeProcess) exited() <-chan string { return p.ended }
func (p *fakeProcess) close() error          { return nil }
func (p *fakeProcess) stuck() (string, bool) { return "thread 7 (state D) in a_test", p.held.Load() }
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
			delays = append(delays,
				l.starts["pleg"][i].Sub(l.starts["pleg"][i-1]).Round(time.Millisecond)/time.Millisecond)
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

func TestAHungProcessDelaysOthersBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(name string, _ int, p *fakeProcess) string {
			if name == "bus" {
				return p.hang()
			}
			time.Sleep(100 * time.Millisecond)
			return p.serve()
		}}
		ready := make(chan string, 1)
		s := testSupervisor(t, l,
			Options{Specs: names("bus", "podsync", "pleg"), OnReady: func(status string) { ready <- status }})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		if got := <-ready; got != "3 processes, not ready yet: bus" {
			t.Errorf("reported %q", got)
		}
		if took := time.Since(began); took > s.options.ReadyWait+tick+time.Second {
			t.Errorf("reported after %v", took)
		}
		for name, by := range map[string]time.Duration{
			"bus":     0,
			"podsync": time.Second,
			"pleg":    1100 * time.Millisecond,
		} {
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

// TestAProcessThatDoesNotEnd: the kernel does not let a dead process go for an hour, here and there.
func TestAProcessThatDoesNotEnd(t *testing.T) {
	// stuckFirst is ready, and dies after a minute. Its end is an hour later.
	stuckFirst := func(_ string, nth int, p *fakeProcess) string {
		if nth > 0 {
			return p.serve()
		}
		p.received <- note{ready: true}
		for range 30 {
			time.Sleep(2 * time.Second)
			p.received <- note{watchdog: true}
		}
		p.held.Store(true)
		time.Sleep(time.Hour)
		return "signal: killed"
	}
	run := func(t *testing.T, l *fakeLauncher, s Spec) (*Supervisor, func()) {
		s.Name = "pleg"
		sup := testSupervisor(t, l, Options{Specs: []Spec{s}, Watchdog: 10 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- sup.Run(ctx) }()
		return sup, func() { cancel(); <-done }
	}
	t.Run("it gets a successor", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLauncher{behave: stuckFirst}
			var released atomic.Int32
			s, stop := run(t, l, Spec{Release: func() error { released.Add(1); return nil }})
			time.Sleep(time.Minute + 9*time.Second)
			synctest.Wait()
			p := s.Processes()[0]
			if p.State != Ready || p.PID != 101 || p.Restarts != 1 ||
				p.LastExit != "pid 100 was killed and does not end" {
				t.Errorf("account is %+v", p)
			}
			if len(p.Stuck) != 1 || p.Stuck[0].PID != 100 || p.Stuck[0].WaitsFor != "thread 7 (state D) in a_test" {
				t.Errorf("stuck are %+v", p.Stuck)
			}
			if n := released.Load(); n != 1 {
				t.Errorf("what it holds was freed %d times, want once", n)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if p := s.Processes()[0]; p.State != Ready || p.PID != 101 || p.Restarts != 1 || len(p.Stuck) != 0 {
				t.Errorf("account after its end is %+v", p)
			}
			stop()
		})
	})
	t.Run("it holds a lock", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLauncher{behave: stuckFirst}
			s, stop := run(t, l, Spec{Exclusive: "the lock of a folder"})
			time.Sleep(30 * time.Minute)
			synctest.Wait()
			p := s.Processes()[0]
			if p.State != Stuck || p.PID != 0 ||
				p.Status != "waits for pid 100 to end, which holds the lock of a folder" || len(p.Stuck) != 1 {
				t.Errorf("account is %+v", p)
			}
			if n := l.started("pleg"); n != 1 {
				t.Errorf("started %d times while the lock is held", n)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if p := s.Processes()[0]; p.State != Ready || p.PID != 101 || len(p.Stuck) != 0 {
				t.Errorf("account after its end is %+v", p)
			}
			stop()
		})
	})
	t.Run("each of them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLauncher{behave: func(name string, _ int,
				p *fakeProcess) string {
				return stuckFirst(name, 0, p)
			}}
			s, stop := run(t, l, Spec{})
			time.Sleep(30 * time.Minute)
			synctest.Wait()
			if p := s.Processes()[0]; p.State != Stuck || len(p.Stuck) != maxStuck || l.started("pleg") != maxStuck {
				t.Errorf("started %d times, account is %+v", l.started("pleg"), p)
			}
			stop()
			time.Sleep(time.Hour) // their own end
		})
	})
	t.Run("the node stops meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLauncher{behave: func(_ string, _ int, p *fakeProcess) string {
				p.received <- note{ready: true}
				p.hang()
				p.held.Store(true)
				time.Sleep(time.Hour)
				return "signal: killed"
			}}
			s, stop := run(t, l, Spec{})
			time.Sleep(time.Second)
			began := time.Now()
			stop()
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("the stop took %v, want less than 15 s", took)
			}
			if p := s.Processes()[0]; p.State != Stopped || len(p.Stuck) != 1 {
				t.Errorf("account is %+v", p)
			}
			time.Sleep(2 * time.Hour) // its own end
		})
	})
}

func TestDeadProcessesAreRead(t *testing.T) {
	const living, killed = "SigPnd:\t0000000000000000\n", "SigPnd:\t0000000000000100\n"
	stack := "[<0>] percpu_rwsem_wait+0x15f/0x1d0\n[<0>] mnt_want_write+0x96/0xc0\n[<0>] " +
		"path_openat+0x4cf/0x12d0\n[<0>] do_filp_open+0xc3/0x180\n[<0>] do_sys_openat2+0x6e/0xd0\n"
	for name, c := range map[string]struct {
		tasks map[string]map[string]string
		want  string
	}{
		"it runs": {map[string]map[string]string{"7": {"stat": "7 (a) b) S 1", "status": living},
			"8": {"stat": "8 (a) D 1", "status": living}}, ""},
		"it just ends": {map[string]map[string]string{"7": {"stat": "7 (a) Z 1", "status": killed}}, ""},
		"it is gone":   {nil, ""},
		"a thread of a dead one": {
			map[string]map[string]string{
				"7": {"stat": "7 (a) b) Z 1", "status": living},
				"8": {"stat": "8 ((x) D 1", "status": killed, "stack": stack, "wchan": "percpu_rwsem_wait"},
			},
			"thread 8 (state D) in percpu_rwsem_wait < mnt_want_write < path_openat < do_filp_open",
		},
		"the first thread itself, and no stack": {map[string]map[string]string{"7": {"stat": "7 (a) D 1", "status": killed,
			"wchan": "rpc_wait"}}, "thread 7 (state D) in rpc_wait"},
		"many": {
			map[string]map[string]string{
				"7":  {"stat": "7 (a) D 1", "status": killed, "wchan": "0"},
				"8":  {"stat": "8 (a) D 1", "status": killed, "wchan": "x"},
				"9":  {"stat": "9 (a) D 1", "status": killed, "wchan": "x"},
				"91": {"stat": "91 (a) D 1", "status": killed, "wchan": "x"},
			},
			"thread 7 (state D) in an unknown place of the kernel, thread 8 (state D) in x, thread 9 (state D) in x, 1 more",
		},
	} {
		proc := t.TempDir()
		for tid, files := range c.tasks {
			dir := filepath.Join(proc, "7/task", tid)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got, is := stuck(proc, 7); got != c.want || is != (c.want != "") {
			t.Errorf("%s: it is %t, %q, want %q", name, is, got, c.want)
		}
	}
}
