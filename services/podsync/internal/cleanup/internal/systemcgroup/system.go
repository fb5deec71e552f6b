// Package systemcgroup moves processes out of the root cgroup into the one that systemCgroups names.
//
// It looks once a minute, as the kubelet does, and leaves these alone: the machine's first process, kernel threads,
// what is in another cgroup of any hierarchy, such as containers and units of systemd, and the node agent's own
// processes, which know each other by their cgroups (kubeletCgroups moves them). A process is moved when it is in the
// root at two looks: what a runtime has just started may be on its way into a container, and would be taken out of it.
package systemcgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	libcgroups "github.com/opencontainers/cgroups"
	libmanager "github.com/opencontainers/cgroups/manager"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pidnamespace"
	"github.com/microlet/microlet/services/internal/service"
)

const (
	// period is between two looks (upstream: containerManagerImpl.Start).
	period = time.Minute
	// settle is between the first two, so that a start moves what has been there for long.
	settle = 10 * time.Second
)

// Mover moves processes.
type Mover struct {
	cgroup    string
	programs  []string // the node agent's
	joined    []string // controllers of the hierarchies that move covers; "" is that of cgroup v2
	processes procfs.FS
	move      func(pid int) error
	log       *slog.Logger

	seen   map[process]bool // in the root at the last look
	failed string           // at the last look
}

// process is a process of the machine. Another process may have its number later.
type process struct {
	pid   int
	start uint64
}

// New returns what moves nothing before Run; nil in a container that knows processes by other numbers than /proc.
func New(systemCgroups string, log *slog.Logger) (*Mover, error) {
	isOwn, err := pidnamespace.IsOwn()
	if err != nil {
		return nil, fmt.Errorf("systemCgroups=%s: %w", systemCgroups, err)
	}
	if isOwn {
		log.Info("systemCgroups has no effect in a container", logkey.Field, "systemCgroups", "value", systemCgroups)
		return nil, nil
	}
	m := &Mover{cgroup: path.Join("/", systemCgroups), log: log}
	// The kubelet's cgroup is no unit of systemd either, and has no rules for devices.
	made, err := libmanager.New(&libcgroups.Cgroup{
		Path: m.cgroup, Resources: &libcgroups.Resources{SkipDevices: true},
	})
	if err != nil {
		return nil, fmt.Errorf("systemCgroups=%s: %w", systemCgroups, err)
	}
	m.move = made.Apply
	m.joined = slices.Sorted(maps.Keys(made.GetPaths()))
	m.joined = slices.DeleteFunc(m.joined, func(controller string) bool { return controller == "devices" })
	if m.processes, err = procfs.NewDefaultFS(); err != nil {
		return nil, fmt.Errorf("systemCgroups=%s: %w", systemCgroups, err)
	}
	own, err := os.Executable()
	m.programs = agentPrograms(own)
	return m, err
}

// agentPrograms are what processes of the node agent run: this program, and the one beside it that "microlet up" runs
// some services from.
func agentPrograms(own string) []string {
	return []string{own, filepath.Join(filepath.Dir(own), service.LocalProgram)}
}

// Run moves processes until ctx ends.
func (m *Mover) Run(ctx context.Context) error {
	wait := settle
	for {
		m.look()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = period
	}
}

// look moves what was in the root at the last look too.
func (m *Mover) look() {
	all, err := m.processes.AllProcs()
	if err != nil {
		m.report(nil, fmt.Errorf("list processes: %w", err))
		return
	}
	now := map[process]bool{}
	var moved []int
	var errs []error
	for _, p := range all {
		id, is, err := m.isToBeMoved(p)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		now[id] = is
		if is && m.seen[id] {
			err = m.move(p.PID)
		}
		switch {
		case errors.Is(err, unix.ESRCH):
		case err != nil:
			errs = append(errs, fmt.Errorf("process %d: %w", p.PID, err))
		case is && m.seen[id]:
			moved = append(moved, p.PID)
		}
	}
	m.seen = now
	m.report(moved, errors.Join(errs...))
}

// report logs an error once, not each minute.
func (m *Mover) report(moved []int, err error) {
	if len(moved) > 0 {
		m.log.Info("moved out of the root cgroup", "cgroup", m.cgroup, "pids", moved)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != m.failed {
		m.log.Warn("processes stay in the root cgroup, trying again each minute", logkey.Field, "systemCgroups",
			"value", m.cgroup, logkey.Err, err)
	}
	m.failed = text
}

// isToBeMoved reports whether a process is in the root cgroup and may be moved.
func (m *Mover) isToBeMoved(p procfs.Proc) (process, bool, error) {
	id := process{pid: p.PID}
	if p.PID == 1 {
		return id, false, nil
	}
	stat, err := p.Stat()
	if err != nil {
		return id, false, err
	}
	id.start = stat.Starttime
	// /proc shows the cgroup of the main thread. One that exits is in the root of each hierarchy of cgroup v1, whatever
	// container its process lives on in.
	const exiting, kernelThread = 0x4, 0x200000 // PF_EXITING, PF_KTHREAD
	if stat.Flags&(exiting|kernelThread) != 0 || stat.State == "Z" || stat.State == "X" {
		return id, false, nil
	}
	at, err := p.Cgroups()
	if err != nil || !m.isInRoot(at) {
		return id, false, err
	}
	program, err := p.Executable()
	// An upgrade replaces the file of a program that runs.
	return id, err == nil && !slices.Contains(m.programs, strings.TrimSuffix(program, " (deleted)")), err
}

// isInRoot reports whether the process is in the root of a hierarchy, and elsewhere in none, except where an unfinished
// move has put it.
func (m *Mover) isInRoot(at []procfs.Cgroup) bool {
	inRoot := false
	for _, c := range at {
		switch c.Path {
		case "/":
			inRoot = inRoot || m.joins(c)
		case m.cgroup:
		default:
			return false
		}
	}
	return inRoot
}

// joins reports whether a move puts a process into this hierarchy too.
func (m *Mover) joins(c procfs.Cgroup) bool {
	if len(c.Controllers) == 0 {
		return slices.Contains(m.joined, "")
	}
	return slices.ContainsFunc(c.Controllers, func(name string) bool { return slices.Contains(m.joined, name) })
}
