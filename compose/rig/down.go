package rig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig/internal/cgroup"
	"github.com/microlet/microlet/compose/rig/internal/lock"
	"github.com/microlet/microlet/compose/rig/internal/mounts"
	"github.com/microlet/microlet/compose/rig/internal/network"
	"github.com/microlet/microlet/compose/rig/internal/process"
)

// DownOption changes how Down works.
type DownOption func(*downOptions)

type downOptions struct{ grace bool }

// Fast kills at once instead of letting programs end by themselves.
func Fast(o *downOptions) { o.grace = false }

// grace is how long each program may take to end by itself.
var grace = map[string]time.Duration{
	AgentProgram:      12 * time.Second, // the loop's own grace for the agent is 10 s
	Containerd:        5 * time.Second,
	APIServer:         5 * time.Second,
	ControllerManager: 3 * time.Second,
	Scheduler:         3 * time.Second,
	MetricsServer:     3 * time.Second,
	CSIDriver:         2 * time.Second,
	CSIAttacher:       2 * time.Second,
	CSIProvisioner:    2 * time.Second,
	CSIResizer:        2 * time.Second,
	Collector:         2 * time.Second,
	TraceReceiver:     2 * time.Second,
	NFSServer:         5 * time.Second,
	Registry:          2 * time.Second,
	Etcd:              5 * time.Second,
	Machine:           0, // this machine is discarded, so it need not shut down cleanly
}

// Down stops the instance and takes away all that it made, pods included. The
// order is that of the start, backwards: an API server without etcd hangs. It works on an instance of which any part
// has been killed before, and goes on after a failure, so that as much as possible goes.
func (i *Instance) Down(ctx context.Context, opts ...DownOption) error {
	o := downOptions{grace: true}
	for _, opt := range opts {
		opt(&o)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	begin := time.Now()

	problems := []error{i.stopOne(ctx, AgentProgram, o)}
	// Pods need no API server to end, so both strands go on at once.
	var pods, plane []error
	var strands errgroup.Group
	strands.Go(func() error {
		pods = append(pods, i.stopOne(ctx, Containerd, o), i.stopOne(ctx, Machine, o), i.killPods(ctx))
		return nil
	})
	strands.Go(func() error {
		for _, name := range slices.Concat(csiPrograms(),
			[]string{MetricsServer, Scheduler, ControllerManager, APIServer}) {
			plane = append(plane, i.stopOne(ctx, name, o))
		}
		return nil
	})
	_ = strands.Wait()
	problems = slices.Concat(problems, pods, plane)
	for _, name := range []string{NFSServer, Collector, TraceReceiver, Registry, Etcd} {
		problems = append(problems, i.stopOne(ctx, name, o))
	}
	problems = append(problems, i.remove(ctx))
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("stop instance %s: %w", i.r.Name, err)
	}
	i.printf("instance %s is down after %s", i.r.Name, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

func (i *Instance) stopOne(ctx context.Context, name string, o downOptions) error {
	p, ok := i.r.Processes[name]
	if !ok {
		return nil
	}
	patience := grace[name]
	if !o.grace {
		patience = 0
	}
	if err := p.Stop(ctx, patience); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

// killPods kills what the agent and containerd have left: shims, containers
// and the agent's services.
func (i *Instance) killPods(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var problems []error
	if len(i.defaultPlaces()) > 0 {
		problems = append(problems, cgroup.Kill(ctx, defaultPods))
	}
	problems = append(problems, i.killEscaped(ctx))
	for _, path := range []string{i.programCgroup(AgentProgram), i.programCgroup(Containerd)} {
		problems = append(problems, cgroup.Kill(ctx, path))
	}
	for _, child := range i.tree.Children(i.ownCgroup()) {
		if child != "rig" {
			problems = append(problems, cgroup.Kill(ctx, i.ownCgroup()+"/"+child))
		}
	}
	return errors.Join(problems...)
}

// killEscaped kills processes of containers that were placed outside the instance's cgroup, for example by a CRI client
// that names no cgroup parent. They are found as the children of the instance's shims.
func (i *Instance) killEscaped(ctx context.Context) error {
	escaped, err := i.escaped()
	if err != nil {
		return err
	}
	var problems []error
	for _, s := range escaped {
		paths := s.cgroups
		if err := s.Stop(ctx, 0); err != nil {
			problems = append(problems, err)
			continue
		}
		for _, path := range paths {
			problems = append(problems, i.tree.Remove(ctx, path))
		}
	}
	return errors.Join(problems...)
}

type escapedProcess struct {
	process.Record
	cgroups []string // those made for the container
}

func (i *Instance) escaped() ([]escapedProcess, error) {
	inside, err := process.InCgroup(i.ownCgroup())
	if err != nil {
		return nil, err
	}
	children, err := process.Descendants(inside)
	if err != nil {
		return nil, err
	}
	var found []escapedProcess
	for _, c := range children {
		s := escapedProcess{Record: c.Record}
		for _, path := range c.Cgroups {
			// The folder of a container is named by its id.
			if id := filepath.Base(path); len(id) == 64 && !mounts.Inside(path, i.ownCgroup()) {
				s.cgroups = append(s.cgroups, path)
			}
		}
		found = append(found, s)
	}
	return found, nil
}

// remove takes away what is left when all programs have ended.
func (i *Instance) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	// Records may be old and programs may have left children: the cgroup has
	// the last word on what belongs to the instance.
	problems := []error{cgroup.Kill(ctx, i.ownCgroup())}
	problems = append(problems, mounts.RemoveUnder(i.r.Dir, i.runDir()))
	problems = append(problems, i.tree.Remove(ctx, i.ownCgroup()))
	if len(i.defaultPlaces()) > 0 {
		problems = append(problems, cgroup.Kill(ctx, defaultPods), i.tree.Remove(ctx, defaultPods))
		// The links say which instance owns these cgroups.
		if errors.Join(problems...) == nil {
			problems = append(problems, i.releaseDefaultPlaces())
		}
	}

	unlock, err := lock.File(ctx, machineLock, nil)
	if err != nil {
		return errors.Join(append(problems, err)...)
	}
	defer unlock()
	removal, err := i.removal()
	problems = append(problems, err)
	if err == nil {
		problems = append(problems, network.Remove(removal))
	}
	links, err := logLinks(i.r.Dir)
	problems = append(problems, err)
	for _, link := range links {
		problems = append(problems, os.Remove(link))
	}
	if removal.Last {
		_ = os.Remove(containerLogs) // if it is empty
		releaseDevicePlugins()
		for _, dir := range i.tree.Existing(cgroupHome) {
			_ = unix.Rmdir(dir)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err // the folder holds the logs that show why
	}
	for _, dir := range []string{i.runDir(), i.r.Dir} {
		if err := os.RemoveAll(dir); err != nil {
			problems = append(problems, fmt.Errorf("remove folder: %w", err))
		}
	}
	if err := os.Remove(recordPath(i.r.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		problems = append(problems, fmt.Errorf("remove record: %w", err))
	}
	if removal.Last {
		_ = os.Remove(runHome)
		_ = os.Remove(recordsDir)
	}
	return errors.Join(problems...)
}

// removal says what of the network goes with this instance.
func (i *Instance) removal() (network.Removal, error) {
	names, err := recorded()
	if err != nil {
		return network.Removal{}, err
	}
	others := slices.DeleteFunc(names, func(name string) bool { return name == i.r.Name })
	return network.Removal{Plan: i.r.Network, Name: i.r.Name, Last: len(others) == 0, Keep: i.r.Keep}, nil
}

// containerLogs is where a kubelet links the logs of all containers of the
// machine; it has no setting.
const containerLogs = "/var/log/containers"

// logLinks returns the links to logs below the folder.
func logLinks(dir string) ([]string, error) {
	entries, err := os.ReadDir(containerLogs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list links to container logs: %w", err)
	}
	var found []string
	for _, e := range entries {
		path := filepath.Join(containerLogs, e.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, dir+"/") {
			found = append(found, path)
		}
	}
	return found, nil
}

// Leftovers lists what is on the machine of an instance: nothing, after Down.
// It looks at the machine, whatever the records say.
func (i *Instance) Leftovers(ctx context.Context) ([]string, error) {
	var left []string
	processes, err := process.InCgroup(i.ownCgroup())
	if err != nil {
		return nil, err
	}
	escaped, err := i.escaped()
	if err != nil {
		return nil, err
	}
	for _, s := range escaped {
		processes = append(processes, s.Record)
	}
	mentioned, err := process.Mentioning(i.r.Dir+"/", i.runDir()+"/")
	if err != nil {
		return nil, err
	}
	processes = append(processes, mentioned...)
	slices.SortFunc(processes, func(a, b process.Record) int { return a.PID - b.PID })
	processes = slices.CompactFunc(processes, func(a, b process.Record) bool { return a.PID == b.PID })
	for _, p := range processes {
		left = append(left, fmt.Sprintf("process: %s (pid %d)", p.Name, p.PID))
	}
	points, err := mounts.Under(i.r.Dir, i.runDir())
	if err != nil {
		return nil, err
	}
	for _, p := range points {
		left = append(left, "mount: "+p)
	}
	for _, dir := range i.tree.Existing(i.ownCgroup()) {
		left = append(left, "cgroup: "+dir)
	}
	removal, err := i.removal()
	if err != nil {
		return nil, err
	}
	net, err := network.Leftovers(removal)
	if err != nil {
		return nil, err
	}
	left = append(left, net...)
	links, err := logLinks(i.r.Dir)
	if err != nil {
		return nil, err
	}
	for _, l := range slices.Concat(links, i.defaultPlaces()) {
		left = append(left, "link: "+l)
	}
	for _, path := range []string{i.r.Dir, i.runDir(), recordPath(i.r.Name)} {
		if _, err := os.Lstat(path); err == nil {
			left = append(left, "folder or file: "+path)
		}
	}
	return left, ctx.Err()
}
