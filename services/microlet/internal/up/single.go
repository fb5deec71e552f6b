package up

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/group"
	"github.com/microlet/microlet/services/microlet/internal/placement"
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
	group  *group.Group
}

func newSingle(c *Config, self *service.Service) *single {
	members := make([]group.Member, 0, len(c.Services))
	for _, d := range c.Services {
		cfg := c.Service
		cfg.StopTimeout = service.DefaultStopTimeout
		members = append(members, group.Member{Definition: d, Config: cfg, Kubelet: c.Kubelet})
	}
	return &single{config: c, self: self, group: group.New(c.Service.Placement, members, nil)}
}

// Run implements agents.
func (s *single) Run(ctx context.Context) error {
	all, _ := run.New(ctx)
	all.Go("services", s.group.Run)
	all.Go("turn", s.turn)
	return all.Wait()
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
		if missing := s.group.NotReady(); !notified && (len(missing) == 0 || time.Now().After(readyBy)) {
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
		if err := s.group.Hung(s.config.Watchdog); err != nil {
			return fmt.Errorf("watchdog: %w", err)
		}
	}
}

// singleStates are those of a service as the supervisor has them.
var singleStates = map[group.State]supervisor.State{
	group.Waiting: supervisor.Waiting, group.Starting: supervisor.Starting, group.Ready: supervisor.Ready,
	group.Stopping: supervisor.Stopping, group.Stopped: supervisor.Stopped,
}

// Processes implements agents. All services are one process, of which each has its own state.
func (s *single) Processes() []supervisor.Process {
	var all []supervisor.Process
	for _, a := range s.group.Accounts() {
		p := supervisor.Process{
			Name: string(a.Role), State: singleStates[a.State], Status: a.Status, Started: a.Started,
		}
		if a.State != group.Waiting && a.State != group.Stopped {
			p.PID = os.Getpid()
		}
		all = append(all, p)
	}
	return all
}

// Restart implements agents: nothing of one process is restarted alone.
func (s *single) Restart(name string) error {
	return fmt.Errorf("%s is a part of the process that holds all services, by --placement=%s: restart the agent, such "+
		"as with systemctl restart microlet", name, placement.Single)
}
