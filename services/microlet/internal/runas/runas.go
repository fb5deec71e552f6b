// Package runas turns a process of root into one of a service.
package runas

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
)

// capabilities that an Identity may name.
var capabilities = map[string]uint{
	"CAP_DAC_OVERRIDE":     unix.CAP_DAC_OVERRIDE,
	"CAP_DAC_READ_SEARCH":  unix.CAP_DAC_READ_SEARCH,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	"CAP_SYSLOG":           unix.CAP_SYSLOG,
}

// Exec replaces this process by the program, as the identity: with its user, its groups and its capabilities, which
// are inherited as ambient ones, with no other in the bounding set, and with no way to new privileges. The process has
// to be root's, with CAP_SETUID, CAP_SETGID, CAP_SETPCAP and the identity's capabilities. An identity of root's keeps
// what the process has. Exec returns only with an error.
func Exec(id role.Identity, path string, args, env []string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("run as %s: uid is %d: run it as root, it becomes uid %d by itself", id.Role, os.Geteuid(), id.UID)
	}
	// Capabilities are each thread's own; what this one has is what the program gets.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if id.UID != 0 {
		if err := become(id); err != nil {
			return fmt.Errorf("run as %s: %w", id.Role, err)
		}
	}
	return fmt.Errorf("run as %s: %s: %w", id.Role, path, unix.Exec(path, args, env))
}

func become(id role.Identity) error {
	keep, err := numbers(id.Capabilities)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if err := bound(keep); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities over the change of user: %w", err)
	}
	if err := errors.Join(syscall.Setgroups(groups(id)), syscall.Setresgid(id.GID, id.GID, id.GID)); err != nil {
		return fmt.Errorf("set groups (give it CAP_SETGID): %w", err)
	}
	if err := syscall.Setresuid(id.UID, id.UID, id.UID); err != nil {
		return fmt.Errorf("set user (give it CAP_SETUID): %w", err)
	}
	return raise(keep)
}

func numbers(names []string) ([]uint, error) {
	all := make([]uint, 0, len(names))
	for _, name := range names {
		c, ok := capabilities[name]
		if !ok {
			return nil, fmt.Errorf("capability %s is not known", name)
		}
		all = append(all, c)
	}
	return all, nil
}

// bound drops all but these from the bounding set.
func bound(keep []uint) error {
	for c := uint(0); ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil { // the kernel has no more of them
			return nil
		}
		if has == 0 || slices.Contains(keep, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d (give it CAP_SETPCAP): %w", c, err)
		}
	}
}

// raise leaves the thread these capabilities alone, and has programs inherit them.
func raise(keep []uint) error {
	var sets [2]unix.CapUserData
	for _, c := range keep {
		bit := uint32(1) << (c % 32)
		set := &sets[c/32]
		set.Effective |= bit
		set.Permitted |= bit
		set.Inheritable |= bit
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("keep only the service's capabilities (give it those): %w", err)
	}
	for _, c := range keep {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("have capability %d inherited: %w", c, err)
		}
	}
	return nil
}

// groups are the identity's supplementary groups, with those of the machine's that exist.
func groups(id role.Identity) []int {
	all := slices.Clone(id.Groups)
	for _, name := range id.HostGroups {
		g, err := user.LookupGroup(name)
		if err != nil {
			continue
		}
		if gid, err := strconv.Atoi(g.Gid); err == nil && gid != 0 { // root's group is no log reader's
			all = append(all, gid)
		}
	}
	return all
}
