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

// of is the cgroup of a process; nil if it has no limit. A process with several services has the sum of their limits.
func (l *limits) of(u process) supervisor.Cgroup {
	bytes, most := u.memory(), tasks*len(u.services)
	if l.cgroups == nil || bytes == 0 {
		return nil
	}
	nice := slices.Min(each(u, func(s service.Definition) int { return s.Nice }))
	// The name has no plus sign, by which package peer would not know the cgroup.
	group, err := l.cgroups.Make(processName(u.services[0], u.replica),
		limit.Limits{Memory: bytes, Tasks: most, Nice: nice})
	l.groups = append(l.groups, group)
	if err != nil { // others may be in force
		l.log.Warn("a limit is not enforced", "process", u.name(), "bytes", bytes, "tasks", most, logkey.Err, err)
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
