package supervisor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// runSupervisor runs a supervisor in virtual time, and stops it when the test is over.
func runSupervisor(t *testing.T, s *Supervisor) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(_ string, _ int, p *fakeProcess) string { return p.serve() }}
		s := testSupervisor(t, l, Options{Specs: names("bus", "pleg")})
		if err := s.Restart("pleg"); err == nil || !strings.Contains(err.Error(), "not started yet") {
			t.Errorf("before the start: %v", err)
		}
		defer runSupervisor(t, s)()
		time.Sleep(10 * time.Second)
		if err := errors.Join(s.Restart("pleg"), s.Restart("pleg")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // it has no back-off
		synctest.Wait()
		got := s.Processes()[1]
		if l.started("pleg") != 2 || l.started("bus") != 1 || got.State != Ready || got.Restarts != 1 ||
			got.LastExit != restartAsked {
			t.Errorf("%d starts of pleg, %d of bus: %+v", l.started("pleg"), l.started("bus"), got)
		}
		if err := s.Restart("unknown"); !errors.Is(err, ErrUnknownProcess) {
			t.Errorf("of an unknown process: %v", err)
		}
	})
}

// A process that ignores SIGTERM is killed after its time, and one that waits for its next start is started at once.
func TestRestartOfABadProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(name string, nth int, p *fakeProcess) string {
			switch {
			case name == "deaf" && nth == 0:
				p.received <- note{ready: true}
				return p.hang()
			case name == "broken" && nth < 6:
				return "exit status 1"
			}
			return p.serve()
		}}
		s := testSupervisor(t, l, Options{Specs: names("deaf", "broken")})
		defer runSupervisor(t, s)()
		time.Sleep(1700 * time.Millisecond)
		synctest.Wait()
		if p := s.Processes()[1]; p.State != Backoff {
			t.Fatalf("broken is %+v", p)
		}
		before := l.started("broken")
		if err := errors.Join(s.Restart("deaf"), s.Restart("broken")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if after := l.started("broken"); after != before+1 {
			t.Errorf("broken was started %d times more, want 1", after-before)
		}
		time.Sleep(9 * time.Second)
		if n := l.started("deaf"); n != 1 {
			t.Errorf("deaf was started %d times before its time to stop was over", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if p := s.Processes()[0]; p.State != Ready || p.LastExit != restartAsked {
			t.Errorf("deaf is %+v", p)
		}
	})
}

func TestRestartIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(name string, nth int, p *fakeProcess) string {
			if name != "held" || nth > 0 {
				return p.serve()
			}
			p.received <- note{ready: true}
			p.held.Store(true)
			time.Sleep(time.Hour)
			return "signal: killed"
		}}
		specs := names("held", "slow")
		specs[0].Exclusive = "a lock"
		s := testSupervisor(t, l, Options{Specs: specs, Watchdog: 5 * time.Second})
		stop := runSupervisor(t, s)
		time.Sleep(time.Minute)
		if err := s.Restart("held"); err == nil || !strings.Contains(err.Error(), "waits for pid 100 to end") {
			t.Errorf("of a stuck one: %v; it is %+v", err, s.Processes()[0])
		}
		stop()
		if err := s.Restart("slow"); err == nil || !strings.Contains(err.Error(), "is stopping") {
			t.Errorf("when the agent ends: %v", err)
		}
		time.Sleep(time.Hour) // held's own end
	})
}
