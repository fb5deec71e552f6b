// Package limit bounds the memory of single processes by cgroups below the one that "microlet up" runs in.
//
// A process that takes more is killed by the kernel, and no other. With cgroup v1 the cgroup is in the hierarchy of the
// controller memory alone. With cgroup v2 a cgroup has either processes or others below it, so that up moves itself
// into one of its own first; of a cgroup that is systemd's it does so only if the unit has Delegate=.
package limit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	mount, err := libcgroups.FindCgroupMountpoint("", "memory")
	if err != nil {
		return nil, fmt.Errorf("find the hierarchy of the controller memory: %w", err)
	}
	at, ok := own["memory"]
	if !ok {
		return nil, errors.New("this process is in no cgroup of the controller memory")
	}
	c.dir = filepath.Join(mount, peer.InstanceCgroup(at))
	return c, nil
}

// unifiedMount is where the only hierarchy of cgroup v2 is.
const unifiedMount = "/sys/fs/cgroup"

// prepareUnified moves this process aside, so that the cgroup may have others below it.
func (c *Cgroups) prepareUnified(at string) error {
	c.dir = filepath.Join(unifiedMount, at)
	if !isRoot(c.dir) {
		if !delegated(c.dir) {
			return fmt.Errorf("cgroup %s is systemd's and not delegated: give the unit Delegate=memory", at)
		}
		aside := filepath.Join(c.dir, peer.AgentCgroup+"-"+c.instance)
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
	return nil
}

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

// Group is a cgroup that limits a process.
type Group struct {
	dir     string
	unified bool
}

// Make makes the cgroup of a process, or sets an existing one to the limit in bytes.
func (c *Cgroups) Make(process string, bytes int64) (*Group, error) {
	g := &Group{
		dir:     filepath.Join(c.dir, peer.LimitedCgroup+"-"+c.instance+"-"+process),
		unified: c.unified,
	}
	if err := makeDir(g.dir); err != nil {
		return nil, err
	}
	limit := strconv.FormatInt(bytes, 10)
	if c.unified {
		// Its own children end with it, and swap does not make the limit a larger one.
		return g, errors.Join(
			write(g.dir, "memory.max", limit), optional(write(g.dir, "memory.swap.max", "0")),
			optional(write(g.dir, "memory.oom.group", "1")))
	}
	// The sum with swap may never be below the limit: an old one is lifted first.
	err := errors.Join(
		optional(write(g.dir, "memory.memsw.limit_in_bytes", "-1")),
		write(g.dir, "memory.limit_in_bytes", limit),
		optional(write(g.dir, "memory.memsw.limit_in_bytes", limit)))
	return g, err
}

// Enter makes a process that is about to be started begin in the cgroup, where the kernel can do that. close is to be
// called when it has been started.
func (g *Group) Enter(attr *syscall.SysProcAttr) (closed func(), err error) {
	if !g.unified {
		return func() {}, nil
	}
	fd, err := unix.Open(g.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", g.dir, err)
	}
	attr.UseCgroupFD, attr.CgroupFD = true, fd
	return func() { _ = unix.Close(fd) }, nil // nothing was written
}

// Add moves a process into the cgroup that was just started, where Enter could not.
func (g *Group) Add(pid int) error {
	if g.unified {
		return nil
	}
	return write(g.dir, "cgroup.procs", strconv.Itoa(pid))
}

// Remove removes the cgroup. One that still has a process stays.
func (g *Group) Remove() error {
	err := os.Remove(g.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
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
