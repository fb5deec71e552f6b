package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// PIDs returns all processes.
func PIDs() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Arguments returns the command line of a process; none if it has ended.
func Arguments(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// statFields are those of /proc/<pid>/stat after the command's name, which may hold anything.
func statFields(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields, nil
}

// Parent returns the parent of a process; 0 if it has ended.
func Parent(pid int) int {
	fields, err := statFields(pid)
	if err != nil {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// Children returns the living children of a process.
func Children(pid int) ([]int, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pids, func(p int) bool { return Parent(p) != pid }), nil
}

// Alive reports whether a process exists and is no zombie.
func Alive(pid int) bool {
	fields, err := statFields(pid)
	return err == nil && fields[0] != "Z" && fields[0] != "X"
}

// CPU is what a process has used, in user and kernel mode.
func CPU(pid int) (time.Duration, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil // USER_HZ is 100 wherever Go runs
}

// Used is what all processes and the kernel have used of the processors since the start of the machine.
func Used() (time.Duration, error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stat, err := proc.Stat()
	if err != nil {
		return 0, err
	}
	t := stat.CPUTotal // the time of guests is a part of the user's; see proc_stat(5)
	seconds := t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ
	return time.Duration(seconds * float64(time.Second)), nil
}

// PSS is the proportional set size of a process in bytes.
func PSS(pid int) (int64, error) {
	kib, err := figure(pid, "smaps_rollup", "Pss")
	return kib << 10, err
}

// Anonymous is the resident memory of a process that belongs to no file, in bytes.
func Anonymous(pid int) (int64, error) {
	kib, err := figure(pid, "status", "RssAnon")
	return kib << 10, err
}

// RSS is the resident set size of a process in bytes.
func RSS(pid int) (int64, error) {
	kib, err := figure(pid, "status", "VmRSS")
	return kib << 10, err
}

// Passed is how many bytes a process has read and written by calls of its own, of files and of connections.
func Passed(pid int) (int64, error) {
	read, err := figure(pid, "io", "rchar")
	if err != nil {
		return 0, err
	}
	written, err := figure(pid, "io", "wchar")
	return read + written, err
}

// figure is one of those that a file of /proc/<pid> shows.
func figure(pid int, file, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", pid, file, name)
}

// Credentials are what a process runs as.
type Credentials struct {
	// UIDs and GIDs are the real, effective, saved and file-system ones.
	UIDs, GIDs [4]int
	Groups     []int
	// Permitted, Effective, Inheritable, Ambient and Bounding are capability sets, a bit a capability.
	Permitted, Effective, Inheritable, Ambient, Bounding uint64
	NoNewPrivileges                                      bool
}

// ReadCredentials asks /proc as what a process runs.
func ReadCredentials(pid int) (Credentials, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Credentials{}, err
	}
	c, err := ParseCredentials(text)
	if err != nil {
		return c, fmt.Errorf("/proc/%d/status: %w", pid, err)
	}
	return c, nil
}

// ParseCredentials reads them from what /proc/<pid>/status says, of this machine or another.
func ParseCredentials(text []byte) (c Credentials, err error) {
	values := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		key, rest, _ := strings.Cut(line, ":")
		values[key] = strings.Fields(rest)
	}
	for key, ids := range map[string]*[4]int{"Uid": &c.UIDs, "Gid": &c.GIDs} {
		if len(values[key]) != 4 {
			return c, fmt.Errorf("%s is %v", key, values[key])
		}
		for i, v := range values[key] {
			if ids[i], err = strconv.Atoi(v); err != nil {
				return c, err
			}
		}
	}
	for _, v := range values["Groups"] {
		g, err := strconv.Atoi(v)
		if err != nil {
			return c, err
		}
		c.Groups = append(c.Groups, g)
	}
	for key, set := range map[string]*uint64{
		"CapPrm": &c.Permitted,
		"CapEff": &c.Effective,
		"CapInh": &c.Inheritable,
		"CapAmb": &c.Ambient,
		"CapBnd": &c.Bounding,
	} {
		if *set, err = strconv.ParseUint(strings.Join(values[key], ""), 16, 64); err != nil {
			return c, fmt.Errorf("%s: %w", key, err)
		}
	}
	c.NoNewPrivileges = strings.Join(values["NoNewPrivs"], "") == "1"
	return c, nil
}

// capabilities are those that a service of the node may have.
var capabilities = map[string]int{
	"CAP_DAC_READ_SEARCH":  unix.CAP_DAC_READ_SEARCH,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	"CAP_SYSLOG":           unix.CAP_SYSLOG,
}

// CapabilitySet is the set of these capabilities.
func CapabilitySet(names []string) (uint64, error) {
	var set uint64
	for _, name := range names {
		bit, ok := capabilities[name]
		if !ok {
			return 0, fmt.Errorf("unknown capability %q", name)
		}
		set |= 1 << bit
	}
	return set, nil
}

// SocketHolders maps each socket's inode to the processes that have it open.
func SocketHolders() (map[uint32][]int, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	holders := map[uint32][]int{}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list open files: %w", err)
		}
		for _, fd := range fds {
			target, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if err != nil {
				continue // closed meanwhile
			}
			inode, ok := strings.CutPrefix(target, "socket:[")
			if !ok {
				continue
			}
			n, err := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 32)
			if err == nil && !slices.Contains(holders[uint32(n)], pid) {
				holders[uint32(n)] = append(holders[uint32(n)], pid)
			}
		}
	}
	return holders, nil
}
