package supervisor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestSeveralServicesOfAProcess: each has a state of its own, the process is ready when it says so, and the next
// process waits for the first service alone.
func TestSeveralServicesOfAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLauncher{behave: func(name string, nth int, p *fakeProcess) string {
			if name == "podsync" {
				return p.serve()
			}
			p.received <- note{service: "bus", ready: true, status: "listening", hasStatus: true}
			p.received <- note{service: "stranger", ready: true}
			time.Sleep(5 * time.Second)
			p.received <- note{service: "nodestatus", ready: true, watchdog: true}
			if nth == 0 {
				p.received <- note{ready: true}
				time.Sleep(time.Second)
				return "signal: killed"
			}
			return p.serve()
		}}
		ready := ""
		s := testSupervisor(t, l, Options{
			Specs: []Spec{
				{Name: "bus+nodestatus", Services: []string{"bus", "nodestatus"}}, {Name: "podsync"},
			},
			OnReady: func(status string) { ready = status },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		p := s.Processes()[0]
		if len(p.Services) != 2 || p.State != Starting || p.Services[0] != (Service{"bus", Ready, "listening"}) ||
			p.Services[1].State != Starting {
			t.Errorf("at first the account is %+v", p)
		}
		if l.started("podsync") != 1 {
			t.Error("podsync was not started when bus was ready")
		}
		if missing := s.notReady(); len(missing) != 1 || missing[0] != "nodestatus" {
			t.Errorf("not ready are %q", missing)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if p := s.Processes()[0]; p.State != Ready || p.Services[1].State != Ready || ready != "2 processes" {
			t.Errorf("then the account is %+v, and the supervisor %q", p, ready)
		}
		time.Sleep(time.Second)
		synctest.Wait() // it was killed and has begun again
		p = s.Processes()[0]
		if p.Restarts != 1 || p.Services[1].State != Starting || l.started("podsync") != 1 {
			t.Errorf("after its end the account is %+v, and podsync was started %d times", p, l.started("podsync"))
		}
		for _, name := range []string{"bus", "nodestatus"} {
			if n := testutil.ToFloat64(s.keepers[0].metrics.restarts.WithLabelValues(name)); n != 1 {
				t.Errorf("%v restarts of %s are counted", n, name)
			}
		}
		time.Sleep(10 * time.Second)
		if err := s.Restart("nodestatus"); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if p := s.Processes()[0]; p.Restarts != 2 || p.LastExit != restartAsked || p.State != Ready {
			t.Errorf("after the restart of nodestatus the account is %+v", p)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNamesOfServicesAreUnique(t *testing.T) {
	for _, specs := range [][]Spec{
		{{Name: "a+b", Services: []string{"a", "b"}}, {Name: "b"}},
		{{Name: "a+b", Services: []string{"a", ""}}},
	} {
		if _, err := New(Options{Specs: specs}); err == nil {
			t.Errorf("%+v was accepted", specs)
		}
	}
}

func TestNoteOfAService(t *testing.T) {
	n := parseNote(ServiceKey + "=bus\nREADY=1\nSTATUS=listening")
	if n.service != "bus" || !n.ready || n.status != "listening" {
		t.Errorf("parsed %+v", n)
	}
}
