package up

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// validateExternal says what is wrong with External.
func (c *Config) validateExternal() error {
	if len(c.External) == 0 {
		return nil
	}
	var errs []error
	if c.Placement == Single {
		errs = append(errs, fmt.Errorf("external is %q: the single placement has all services in one process; use "+
			"--placement=%s", strings.Join(c.External, ","), Processes))
	}
	names := make([]string, 0, len(c.Services))
	for _, s := range c.Services {
		names = append(names, string(s.Role))
	}
	for _, name := range c.External {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("external has %q: name services of %s", name, strings.Join(names, ", ")))
		}
	}
	if c.Kubelet != nil && c.Kubelet.Node.LockFile != "" {
		path := c.Kubelet.Node.LockFile
		for _, name := range []role.Role{role.Podsync, role.NodeStatus} {
			if slices.Contains(c.External, string(name)) {
				errs = append(errs, fmt.Errorf("--lock-file=%s: %s, which external names, would run without the lock: "+
					"remove the flag, or let microlet up start it", path, name))
			}
		}
	}
	if len(errs) == 0 && !slices.ContainsFunc(c.Services, c.supervised) {
		errs = append(errs, errors.New(
			"external names every service: nothing is left to supervise; use \"microlet prepare\""))
	}
	return errors.Join(errs...)
}

// supervised reports whether the service is started here.
func (c *Config) supervised(s service.Definition) bool {
	return !slices.Contains(c.External, string(s.Role))
}

// external accounts for the replicas of the services that something else starts, by their heartbeats. A service without
// a heartbeat is listed once, as one that is missing, or as one that is not needed if it runs on demand.
func (s *server) external() []supervisor.Process {
	var all []supervisor.Process
	for _, r := range s.externals {
		before := len(all)
		for key, beat := range s.heartbeats.All() {
			of, replica, ok := subject.ParseHeartbeatKey(key)
			if !ok || of != r {
				continue
			}
			all = append(all, supervisor.Process{
				Name: service.ProcessName(r, replica), State: supervisor.External, PID: int(beat.GetPid()),
				Started: beat.GetStarted().AsTime(),
			})
		}
		if len(all) == before {
			state := supervisor.External
			if slices.Contains(s.onDemand, r) { // it puts a heartbeat once it is started
				state = supervisor.Idle
			}
			all = append(all, supervisor.Process{Name: string(r), State: state})
		}
		slices.SortFunc(all[before:], func(a, b supervisor.Process) int { return cmp.Compare(a.Name, b.Name) })
	}
	return all
}

// externals are the roles of the services that something else starts, in start order.
func (c *Config) externals() []role.Role {
	var roles []role.Role
	for _, s := range c.Services {
		if !c.supervised(s) {
			roles = append(roles, s.Role)
		}
	}
	return roles
}
