package up

import (
	"log/slog"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/limit"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// limits are the cgroups of the processes that have a memory limit. One that cannot be enforced is logged, and keeps
// nothing from running.
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
	for _, s := range c.Services {
		if memoryLimit(s) == 0 {
			continue
		}
		cgroups, err := limit.New(c.Service.RuntimeDir)
		if err != nil {
			log.Warn("memory limits are not enforced", logkey.Service, s.Role, logkey.Err, err)
			return l
		}
		l.cgroups = cgroups
		return l
	}
	return l
}

// of is the cgroup of a process; nil if it has no limit.
func (l *limits) of(s service.Definition, process string) supervisor.Cgroup {
	bytes := memoryLimit(s)
	if l.cgroups == nil || bytes == 0 {
		return nil
	}
	group, err := l.cgroups.Make(process, bytes)
	if group != nil { // also one whose limit could not be set is to be removed
		l.groups = append(l.groups, group)
	}
	if err != nil {
		l.log.Warn("memory limit is not enforced", "process", process, "bytes", bytes, logkey.Err, err)
		return nil
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

func memoryLimit(s service.Definition) int64 {
	if s.MemoryLimit == nil {
		return 0
	}
	return s.MemoryLimit()
}
