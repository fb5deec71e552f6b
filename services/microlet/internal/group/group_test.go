package group

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// life is what a service of a test does.
type life func(ctx context.Context, say func(states ...string)) error

// untilStopped is the life of a good service.
func untilStopped(ctx context.Context, say func(states ...string)) error {
	say(run.NotifyReady, run.NotifyStatus+"working")
	<-ctx.Done()
	return nil
}

// members are services of these lives, of which the bus stops last.
func members(network *service.InProcess, lives map[role.Role]life) []Member {
	var all []Member
	for _, r := range []role.Role{role.Bus, role.PLEG, role.NodeStatus} {
		do, has := lives[r]
		if !has {
			continue
		}
		d := service.Definition{
			Role: r,
			Run: func(ctx context.Context, _ service.Config, _ *kubeletconfig.Config) error {
				return do(ctx, func(states ...string) { network.Notify(r, states...) })
			},
		}
		if r == role.Bus {
			d.StopStage = 2
		}
		all = append(all, Member{Definition: d})
	}
	return all
}

// events are what happened, in order.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) add(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, what)
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// TestStages: a group stops its services as the supervisor stops processes, and one that does not stop has the others
// wait no longer than it may.
func TestStages(t *testing.T) {
	for name, slow := range map[string]time.Duration{"in time": time.Second, "too slow": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var happened events
				network := &service.InProcess{}
				began := time.Time{}
				g := New(network, members(network, map[role.Role]life{
					role.Bus: func(ctx context.Context, say func(...string)) error {
						err := untilStopped(ctx, say)
						happened.add("bus after " + time.Since(began).String())
						return err
					},
					role.NodeStatus: func(ctx context.Context, say func(...string)) error {
						err := untilStopped(ctx, say)
						time.Sleep(slow)
						happened.add("nodestatus after " + time.Since(began).String())
						return err
					},
				}), nil)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- g.Run(ctx) }()
				time.Sleep(time.Second)
				began = time.Now()
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				want := []string{"nodestatus after 1s", "bus after 1s"}
				if slow > stageTime {
					want = []string{"bus after 2s", "nodestatus after 5s"}
				}
				if got := happened.all(); !slices.Equal(got, want) {
					t.Errorf("happened %q, want %q", got, want)
				}
			})
		})
	}
}

// TestTheEndOfOneEndsAll: nothing of a process is restarted alone.
func TestTheEndOfOneEndsAll(t *testing.T) {
	broken := errors.New("broken")
	for want, end := range map[string]life{
		"pleg: broken":          func(context.Context, func(...string)) error { time.Sleep(time.Minute); return broken },
		"pleg: ended by itself": func(context.Context, func(...string)) error { time.Sleep(time.Minute); return nil },
		"pleg: panic: odd":      func(context.Context, func(...string)) error { time.Sleep(time.Minute); panic("odd") },
	} {
		synctest.Test(t, func(t *testing.T) {
			network := &service.InProcess{}
			g := New(network, members(network, map[role.Role]life{role.Bus: untilStopped, role.PLEG: end}), nil)
			began := time.Now()
			err := g.Run(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), want) || time.Since(began) != time.Minute {
				t.Errorf("after %v: %v, want %q", time.Since(began), err, want)
			}
			for _, a := range g.Accounts() {
				if a.Role == role.Bus && a.State != Stopped {
					t.Errorf("%s is %v", a.Role, a.State)
				}
			}
		})
	}
}

// supervised is a process whose notifications are kept.
func supervised(t *testing.T, watchdog time.Duration, lives map[role.Role]life) (*process, *service.InProcess,
	*events) {
	t.Helper()
	var sent events
	network := &service.InProcess{}
	p := &process{
		log: slog.New(slog.NewTextHandler(io.Discard, nil)), watchdog: watchdog,
		notify: func(states ...string) error { sent.add(strings.Join(states, " ")); return nil },
	}
	p.group = New(network, members(network, lives), p.tell)
	return p, network, &sent
}

// TestNotificationsOfAProcess: the supervisor hears of each service, and READY when all are ready.
func TestNotificationsOfAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, sent := supervised(t, 0, map[role.Role]life{
			role.Bus: untilStopped,
			role.NodeStatus: func(ctx context.Context, say func(...string)) error {
				time.Sleep(time.Second)
				return untilStopped(ctx, say)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.run(ctx) }()
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		of := func(r role.Role) string { return serviceKey + "=" + string(r) + " READY=1 STATUS=working" }
		if got, want := sent.all(), []string{of(role.Bus)}; !slices.Equal(got, want) {
			t.Errorf("at first it says %q, want %q", got, want)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := sent.all()[1:], []string{of(role.NodeStatus), run.NotifyReady}; !slices.Equal(got, want) {
			t.Errorf("then it says %q, want %q", got, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := sent.all(); got[len(got)-1] != run.NotifyStopping {
			t.Errorf("at the end it says %q", got)
		}
	})
	if serviceKey != supervisor.ServiceKey {
		t.Errorf("the supervisor reads %s", supervisor.ServiceKey)
	}
}

// TestReadyIsSaidUntilItIsHeard: the supervisor would take the process for one that starts for ever.
func TestReadyIsSaidUntilItIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, sent := supervised(t, 0, map[role.Role]life{role.Bus: untilStopped})
		heard, began := p.notify, time.Now()
		p.notify = func(states ...string) error {
			if time.Since(began) < 10*time.Second {
				return errors.New("no buffer space")
			}
			return heard(states...)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.run(ctx) }()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := sent.all(); !slices.Equal(got, []string{run.NotifyReady}) {
			t.Errorf("it says %q", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestWatchdogOfAProcess: it is fed while the loops of all services turn.
func TestWatchdogOfAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const watchdog = 10 * time.Second
		p, network, sent := supervised(t, watchdog, map[role.Role]life{role.Bus: untilStopped, role.PLEG: untilStopped})
		pulses := map[role.Role]*service.Pulse{role.Bus: service.NewPulse(), role.PLEG: service.NewPulse()}
		for r, pulse := range pulses {
			network.Join(r, pulse)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.run(ctx) }()
		fed := func(turn ...role.Role) (count int) {
			before := len(sent.all())
			for range 10 {
				for _, r := range turn {
					pulses[r].Turn()
				}
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			for _, said := range sent.all()[before:] {
				if said == run.NotifyWatchdog {
					count++
				}
			}
			return count
		}
		if n := fed(role.Bus, role.PLEG); n < 7 {
			t.Errorf("fed %d times in 20 s while all turn", n)
		}
		if n := fed(role.Bus); n > 2 {
			t.Errorf("fed %d times in 20 s while pleg hangs", n)
		}
		if err := p.group.Hung(watchdog); err == nil || !strings.Contains(err.Error(), "pleg has stood still for 2") {
			t.Errorf("hung is %v", err)
		}
		if n := fed(role.Bus, role.PLEG); n < 7 {
			t.Errorf("fed %d times in 20 s after pleg went on", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestAServiceThatStartsMayStandStill, as a process may that starts, but not for ever.
func TestAServiceThatStartsMayStandStill(t *testing.T) {
	for name, hasLoop := range map[string]bool{"with a loop": true, "before it has a loop": false} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { standStill(t, hasLoop) }) })
	}
}

func standStill(t *testing.T, hasLoop bool) {
	network := &service.InProcess{}
	g := New(network, members(network, map[role.Role]life{
		role.PLEG: func(ctx context.Context, _ func(...string)) error { <-ctx.Done(); return nil },
	}), nil)
	if hasLoop {
		network.Join(role.PLEG, service.NewPulse())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	time.Sleep(startTime)
	if err := g.Hung(5 * time.Second); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	if err := g.Hung(5 * time.Second); err == nil {
		t.Error("it may stand still for ever")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	all := []service.Definition{{Role: role.Bus}, {Role: role.PLEG}, {Role: role.NodeStatus}}
	for name, want := range map[string]string{
		"bus+nodestatus": "[bus nodestatus]", "nodestatus+bus": "[bus nodestatus]", "pleg": "[pleg]",
	} {
		got, err := membersOf(name, all)
		if err != nil || want != "["+strings.Join(namesOf(got), " ")+"]" {
			t.Errorf("%s has %q (%v), want %s", name, namesOf(got), err, want)
		}
	}
	for _, name := range []string{"", "stats", "bus+", "bus+bus"} {
		if got, err := membersOf(name, all); err == nil || !strings.Contains(err.Error(), "group is ") {
			t.Errorf("%q has %q: %v", name, namesOf(got), err)
		}
	}
	for _, args := range [][]string{nil, {"bus"}, {"up", "group"}} {
		if _, called := NameOf(args); called {
			t.Errorf("%q calls a group", args)
		}
	}
	if name, called := NameOf([]string{"group"}); !called || name != "" {
		t.Errorf("the name of none is %q", name)
	}
}

func namesOf(all []service.Definition) (names []string) {
	for _, d := range all {
		names = append(names, string(d.Role))
	}
	return names
}
