package up

import (
	"log/slog"
	"slices"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/limit"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// tasks is how many processes and threads a service may have that has limits. podsync has those of the whole agent.
const tasks = 512

// limits are the cgroups of the processes that have a memory limit, which has them share the processors too. One that
// cannot be enforced is logged, and keeps nothing from running.
type limits struct {
	cgroups *limit.Cgroups // nil where there are none
	groups  []*limit.Group
	log     *slog.Logger
}

// newLimits prepares the own cgroup if a service has a limit.
func newLimits(c *Config, log *slog.Logger) *limits {
	l := &limits{log: log}
	if c.Placement == Single {
		return l // a limit would be that of all services together
	}
	if !slices.ContainsFunc(c.Services, func(s service.Definition) bool { return s.Memory() != 0 }) {
		return l
	}
	cgroups, err := limit.New(c.Service.RuntimeDir)
	if err != nil {
		log.Warn("limits of memory and processes are not enforced", logkey.Err, err)
		return l
	}
	l.cgroups = cgroups
	return l
}

// of is the cgroup of a process; nil if it has no limit.
func (l *limits) of(s service.Definition, process string) supervisor.Cgroup {
	bytes := s.Memory()
	if l.cgroups == nil || bytes == 0 {
		return nil
	}
	group, err := l.cgroups.Make(process, limit.Limits{Memory: bytes, Tasks: tasks, Nice: s.Nice})
	l.groups = append(l.groups, group)
	if err != nil { // others may be in force
		l.log.Warn("a limit is not enforced", "process", process, "bytes", bytes, "tasks", tasks, logkey.Err, err)
	}
	return group
}

// remove removes the cgroups when the processes have ended.
func (l *limits) remove() {
	for _, g := range l.groups {
		if err := g.Remove(); err != nil {
			l.log.Warn("a cgroup stays behind", logkey.Err, err)
		}
	}
}
