package up

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// singleTurn is the period of single's own loop.
const singleTurn = 500 * time.Millisecond

// singleReadyWait is how long the services may take before systemd gets READY regardless, as with processes: one
// that does not begin is for the watchdog, and no failed start of the others.
const singleReadyWait = 30 * time.Second

// single runs all services in this process. There is nothing to restart alone in it: a service that
// ends or hangs ends the process, which its own supervisor starts again.
type single struct {
	config *Config
	self   *service.Service

	mu       sync.Mutex
	accounts []supervisor.Process
}

func newSingle(c *Config, self *service.Service) *single {
	s := &single{config: c, self: self}
	for _, a := range c.Services {
		s.accounts = append(s.accounts, supervisor.Process{Name: string(a.Role)})
	}
	c.Service.Placement.Notify = s.take
	return s
}

// Run implements agents.
func (s *single) Run(ctx context.Context) error {
	group, _ := run.New(ctx)
	for _, a := range s.config.Services {
		cfg := s.config.Service
		cfg.StopTimeout = service.DefaultStopTimeout
		s.update(a.Role, func(p *supervisor.Process) {
			p.State, p.PID, p.Started = supervisor.Starting, os.Getpid(), time.Now()
		})
		group.Go(string(a.Role), func(ctx context.Context) error {
			err := a.Run(ctx, cfg, s.config.Kubelet)
			s.update(a.Role, func(p *supervisor.Process) { p.State, p.PID = supervisor.Stopped, 0 })
			if err == nil && ctx.Err() == nil {
				return fmt.Errorf("ended by itself")
			}
			return err
		})
	}
	group.Go("turn", s.turn)
	return group.Wait()
}

// turn reports when all are ready or have had their time for it, and ends the process when one hangs.
func (s *single) turn(ctx context.Context) error {
	t := time.NewTicker(singleTurn)
	defer t.Stop()
	notified, looked, readyBy := false, time.Now(), time.Now().Add(singleReadyWait)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		s.self.Pulse.Turn()
		if missing := s.notReady(); !notified && (len(missing) == 0 || time.Now().After(readyBy)) {
			notified = true
			status := fmt.Sprintf("%d services in one process", len(s.config.Services))
			if len(missing) > 0 {
				status += ", not ready yet: " + strings.Join(missing, ", ")
			}
			s.self.Ready(status)
		}
		// After a stop of the whole process, every loop needs a moment for its next round.
		whole := time.Since(looked) > 4*singleTurn
		looked = time.Now()
		if s.config.Watchdog == 0 || whole {
			continue
		}
		for r, idle := range s.config.Service.Placement.Idle() {
			if idle > s.config.Watchdog && s.state(r) == supervisor.Ready {
				return fmt.Errorf("watchdog: %s has stood still for %v", r, idle.Round(time.Second))
			}
		}
	}
}

// take does what a service's notification says.
func (s *single) take(r role.Role, states ...string) {
	s.update(r, func(p *supervisor.Process) {
		for _, state := range states {
			switch {
			case state == run.NotifyReady && p.State == supervisor.Starting:
				p.State = supervisor.Ready
			case state == run.NotifyStopping:
				p.State = supervisor.Stopping
			case strings.HasPrefix(state, run.NotifyStatus):
				p.Status = strings.TrimPrefix(state, run.NotifyStatus)
			}
		}
	})
}

func (s *single) update(r role.Role, f func(*supervisor.Process)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.accounts {
		if s.accounts[i].Name == string(r) {
			f(&s.accounts[i])
		}
	}
}

func (s *single) state(r role.Role) (state supervisor.State) {
	s.update(r, func(p *supervisor.Process) { state = p.State })
	return state
}

// notReady names the services that are not ready.
func (s *single) notReady() (names []string) {
	for _, p := range s.Processes() {
		if p.State != supervisor.Ready {
			names = append(names, p.Name)
		}
	}
	return names
}

// Processes implements agents.
func (s *single) Processes() []supervisor.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]supervisor.Process(nil), s.accounts...)
}

// Restart implements agents: nothing of one process is restarted alone.
func (s *single) Restart(name string) error {
	return fmt.Errorf("%s is a part of the process that holds all services, by --placement=%s: restart the agent, such "+
		"as with systemctl restart microlet", name, Single)
}
