// Package limit bounds single processes by cgroups below the one that "microlet up" runs in.
//
// A process that takes more memory is killed by the kernel, and no other. One that starts more processes than it may
// gets an error. One that has many threads that compute gets no more of the processors than one that has few. What a
// process has started and left behind can be killed, whatever session it is in. With cgroup v1 the cgroup is in the
// hierarchies of the controllers memory, cpu and pids alone. With cgroup v2 a cgroup has either processes or others
// below it, so that up moves itself into one of its own first; of a cgroup that is systemd's it does so only if the
// unit has Delegate=.
package limit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	libcgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/peer"
)

// Cgroups makes the cgroups of one instance.
type Cgroups struct {
	// dir is the folder of the cgroup that they are made in.
	dir      string
	instance string
	unified  bool

	// further are the other controllers of cgroup v1.
	further []controller
}

// controller is one of cgroup v1.
type controller struct {
	name string
	// set sets the limit of a cgroup.
	set func(dir string, limits Limits) error
	// dir is the folder of the agent's cgroup. err says why there is none.
	dir string
	err error
}

// New prepares the cgroup that this process runs in. instance is what no other node agent of this machine has, such as
// the runtime folder. The error says why no limits can be enforced.
func New(instance string) (*Cgroups, error) {
	own, err := libcgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find the own cgroup: %w", err)
	}
	sum := sha256.Sum256([]byte(instance))
	c := &Cgroups{instance: hex.EncodeToString(sum[:4]), unified: libcgroups.IsCgroup2UnifiedMode()}
	if c.unified {
		return c, c.prepareUnified(peer.InstanceCgroup(own[""]))
	}
	if c.dir, err = ownDir(own, "memory"); err != nil {
		return nil, err
	}
	for _, of := range []controller{
		{name: "cpu", set: func(dir string, l Limits) error {
			return write(dir, "cpu.shares", strconv.Itoa(shares(l.Nice)))
		}},
		{name: "pids", set: func(dir string, l Limits) error { return write(dir, "pids.max", strconv.Itoa(l.Tasks)) }},
	} {
		of.dir, of.err = ownDir(own, of.name)
		c.further = append(c.further, of)
	}
	return c, nil
}

// shares are the weight of a cgroup of v1 for the processors, as the kernel weights a process of this niceness.
func shares(nice int) int { return int(1024 / math.Pow(1.25, float64(nice))) }

// ownDir is the folder of the agent's cgroup in the hierarchy of a controller of cgroup v1.
func ownDir(own map[string]string, controller string) (string, error) {
	mount, err := libcgroups.FindCgroupMountpoint("", controller)
	if err != nil {
		return "", fmt.Errorf("find the hierarchy of the controller %s: %w", controller, err)
	}
	at, ok := own[controller]
	if !ok {
		return "", fmt.Errorf("this process is in no cgroup of the controller %s", controller)
	}
	return filepath.Join(mount, peer.InstanceCgroup(at)), nil
}

// unifiedMount is where the only hierarchy of cgroup v2 is.
const unifiedMount = "/sys/fs/cgroup"

// prepareUnified moves this process aside, so that the cgroup may have others below it.
func (c *Cgroups) prepareUnified(at string) error {
	c.dir = filepath.Join(unifiedMount, at)
	aside := ""
	if !isRoot(c.dir) {
		if !delegated(c.dir) {
			return fmt.Errorf("cgroup %s is systemd's and not delegated: give the unit Delegate=cpu memory pids", at)
		}
		aside = filepath.Join(c.dir, peer.AgentCgroup+"-"+c.instance)
		if err := makeDir(aside); err != nil {
			return err
		}
		if err := write(aside, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
	}
	if err := write(c.dir, "cgroup.subtree_control", "+memory"); err != nil {
		return fmt.Errorf("limit memory below cgroup %s: %w", at, err)
	}
	for _, controller := range []string{"+pids", "+cpu"} {
		_ = write(c.dir, "cgroup.subtree_control", controller) // without it Make says that a file of it is not there
	}
	if aside != "" {
		_ = write(aside, "cpu.weight.nice", strconv.Itoa(agentNice))
	}
	return nil
}

// agentNice weights podsync and the supervisor, which share a cgroup, as much as nine others of niceness 0.
const agentNice = -10

// isRoot reports whether a cgroup is the root of the whole hierarchy, which alone may have both processes and others
// below it. In a cgroup namespace of its own, such as a container's, a process sees its cgroup as "/" too. The root has
// no type (cgroups(7)).
func isRoot(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.type"))
	return errors.Is(err, fs.ErrNotExist)
}

// delegated reports whether a cgroup may have others below it that systemd does not know of.
func delegated(dir string) bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return true // there is no systemd
	}
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		var value [1]byte
		if n, err := unix.Getxattr(dir, name, value[:]); err == nil && n == 1 && value[0] == '1' {
			return true
		}
	}
	return false
}

// Limits are those of a process and of what it starts.
type Limits struct {
	// Memory is in bytes.
	Memory int64
	// Tasks is the number of processes and threads.
	Tasks int
	// Nice is the niceness that they have together among the other processes of the node agent.
	Nice int
}

// Group is a cgroup that limits a process: one folder, or with cgroup v1 one for each controller.
type Group struct {
	dirs    []string
	unified bool
}

// Make makes the cgroup of a process, or sets an existing one to the limits. With an error, the group has those limits
// that could be set.
func (c *Cgroups) Make(process string, limits Limits) (*Group, error) {
	g, name := &Group{unified: c.unified}, peer.LimitedCgroup+"-"+c.instance+"-"+process
	memory := strconv.FormatInt(limits.Memory, 10)
	if c.unified {
		dir := filepath.Join(c.dir, name)
		if err := makeDir(dir); err != nil {
			return g, err
		}
		g.dirs = []string{dir}
		// Its own children end with it, and swap does not make the limit a larger one.
		return g, errors.Join(
			write(dir, "memory.max", memory), optional(write(dir, "memory.swap.max", "0")),
			optional(write(dir, "memory.oom.group", "1")), write(dir, "pids.max", strconv.Itoa(limits.Tasks)),
			write(dir, "cpu.weight.nice", strconv.Itoa(limits.Nice)))
	}
	var errs []error
	dir := filepath.Join(c.dir, name)
	err := makeDir(dir)
	if err == nil {
		g.dirs = append(g.dirs, dir)
		// The sum with swap may never be below the limit: an old one is lifted first.
		err = errors.Join(
			optional(write(dir, "memory.memsw.limit_in_bytes", "-1")),
			write(dir, "memory.limit_in_bytes", memory),
			optional(write(dir, "memory.memsw.limit_in_bytes", memory)))
	}
	errs = append(errs, err)
	for _, of := range c.further {
		dir, err := filepath.Join(of.dir, name), of.err
		if err == nil {
			err = makeDir(dir)
		}
		if err == nil {
			g.dirs = append(g.dirs, dir)
			err = of.set(dir, limits)
		}
		errs = append(errs, err)
	}
	return g, errors.Join(errs...)
}

// Enter makes a process that is about to be started begin in the cgroup, where the kernel can do that. close is to be
// called when it has been started.
func (g *Group) Enter(attr *syscall.SysProcAttr) (closed func(), err error) {
	if !g.unified || len(g.dirs) == 0 {
		return func() {}, nil
	}
	fd, err := unix.Open(g.dirs[0], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", g.dirs[0], err)
	}
	attr.UseCgroupFD, attr.CgroupFD = true, fd
	return func() { _ = unix.Close(fd) }, nil // nothing was written
}

// Add moves a process into the cgroup that was just started, where Enter could not.
func (g *Group) Add(pid int) error {
	if g.unified {
		return nil
	}
	var errs []error
	for _, dir := range g.dirs {
		errs = append(errs, write(dir, "cgroup.procs", strconv.Itoa(pid)))
	}
	return errors.Join(errs...)
}

// killRounds is how often Kill looks for processes that those have started which it has just killed.
const killRounds = 32

// Kill ends each process of the cgroup.
func (g *Group) Kill() error {
	if g.unified && len(g.dirs) > 0 {
		if err := write(g.dirs[0], "cgroup.kill", "1"); !errors.Is(err, fs.ErrNotExist) { // since Linux 5.14
			return err
		}
	}
	var errs []error
	for _, dir := range g.dirs {
		for range killRounds {
			n, err := killAll(dir)
			if errs = append(errs, err); n == 0 || err != nil {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// killAll kills the processes that a cgroup has now, and returns how many.
func killAll(dir string) (int, error) {
	pids, err := processes(dir)
	var errs []error
	for _, pid := range pids {
		errs = append(errs, kill(dir, pid))
	}
	return len(pids), errors.Join(append(errs, err)...)
}

// kill kills a process if it is the cgroup's: the number may be another one's meanwhile.
func kill(dir, pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	p, err := os.FindProcess(n) // by a pidfd
	if err != nil {
		return fmt.Errorf("find process %d of cgroup %s: %w", n, strings.TrimPrefix(dir, unifiedMount), err)
	}
	defer func() { _ = p.Release() }()
	pids, err := processes(dir)
	if err != nil || !slices.Contains(pids, pid) {
		return err
	}
	if err := p.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// processes are the numbers of a cgroup's processes.
func processes(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}

// Remove removes the cgroup. One that still has a process stays.
func (g *Group) Remove() error {
	var errs []error
	for _, dir := range g.dirs {
		if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	return nil
}

// write sets a file of a cgroup. It makes none.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("set %s of cgroup %s to %s: %w", file, strings.TrimPrefix(dir, unifiedMount), value, err)
	}
	return nil
}

// optional is the error of a file that not every kernel has.
func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
