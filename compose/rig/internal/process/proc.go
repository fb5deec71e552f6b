package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Stat is the part of /proc/<pid>/stat that the rig uses.
type Stat struct {
	PID       int
	Command   string // comm, without its parentheses, at most 15 bytes
	State     byte   // R, S, D, Z, T, …: see proc_pid_stat(5)
	Parent    int
	Threads   int
	StartTime uint64 // clock ticks since boot
}

// Dead reports whether the process has ended, even if its parent has not
// collected it yet. A process still has all its files and locks while one of its threads lives, even if its first
// thread has ended.
func (s Stat) Dead() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// ParseStat parses the content of /proc/<pid>/stat. The command may hold
// spaces and parentheses, so it ends at the last closing one.
func ParseStat(text string) (Stat, error) {
	open := strings.IndexByte(text, '(')
	end := strings.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return Stat{}, fmt.Errorf("parse stat %q: no command in parentheses", clip(text))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text[:open]))
	if err != nil {
		return Stat{}, fmt.Errorf("parse stat %q: pid: %w", clip(text), err)
	}
	// Fields after the command, counted from state, which is field 3.
	fields := strings.Fields(text[end+1:])
	const state, parent, threads, start = 0, 1, 17, 19
	if len(fields) <= start {
		return Stat{}, fmt.Errorf("parse stat %q: %d fields after the command, want at least %d", clip(text),
			len(fields), start+1)
	}
	if len(fields[state]) != 1 {
		return Stat{}, fmt.Errorf("parse stat %q: state %q is not one letter", clip(text), fields[state])
	}
	ppid, err := strconv.Atoi(fields[parent])
	if err != nil {
		return Stat{}, fmt.Errorf("parse stat %q: parent: %w", clip(text), err)
	}
	count, err := strconv.Atoi(fields[threads])
	if err != nil {
		return Stat{}, fmt.Errorf("parse stat %q: threads: %w", clip(text), err)
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("parse stat %q: start time: %w", clip(text), err)
	}
	return Stat{
		PID:       pid,
		Command:   text[open+1 : end],
		State:     fields[state][0],
		Parent:    ppid,
		Threads:   count,
		StartTime: ticks,
	}, nil
}

// ReadStat reads the Stat of a live process. The error wraps fs.ErrNotExist
// when there is none with that pid.
func ReadStat(pid int) (Stat, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(string(text))
}

// CgroupPaths parses the content of /proc/<pid>/cgroup and returns the
// process's path in each hierarchy, without duplicates.
func CgroupPaths(text string) []string {
	var paths []string
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		// hierarchy-ID:controller-list:path, and the path may hold colons.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || parts[2] == "" || seen[parts[2]] {
			continue
		}
		seen[parts[2]] = true
		paths = append(paths, parts[2])
	}
	return paths
}

// InCgroup returns the processes that are in the cgroup or below it in any
// hierarchy. Processes that end while it looks are left out.
func InCgroup(cgroup string) ([]Record, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Record
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if err != nil {
			continue
		}
		for _, path := range CgroupPaths(string(text)) {
			if path != cgroup && !strings.HasPrefix(path, cgroup+"/") {
				continue
			}
			stat, err := ReadStat(pid)
			if err == nil && !stat.Dead() {
				found = append(found, Record{Name: stat.Command, PID: pid, StartTime: stat.StartTime})
			}
			break
		}
	}
	return found, nil
}

// BootID names the current boot of the machine; records of another boot name
// no process of this one.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", errors.New("read boot id: empty")
	}
	return id, nil
}

// IsBoot reports whether the machine has not been rebooted since BootID returned the id.
func IsBoot(id string) (bool, error) {
	now, err := BootID()
	return now == id, err
}

func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// Child is a process with its cgroups.
type Child struct {
	Record
	Cgroups []string
}

// Descendants returns the direct and indirect children of these processes, without these processes themselves.
func Descendants(of []Record) ([]Child, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	all := map[int]Stat{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, err := ReadStat(pid); err == nil && !s.Dead() {
			all[pid] = s
		}
	}
	roots := map[int]bool{}
	for _, r := range of {
		if s, ok := all[r.PID]; ok && s.StartTime == r.StartTime {
			roots[r.PID] = true
		}
	}
	var found []Child
	for pid, stat := range all {
		if roots[pid] {
			continue
		}
		for p, ok := all[stat.Parent]; ok; p, ok = all[p.Parent] {
			if roots[p.PID] {
				child := Child{Record: Record{Name: stat.Command, PID: pid, StartTime: stat.StartTime}}
				if text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup")); err == nil {
					child.Cgroups = CgroupPaths(string(text))
				}
				found = append(found, child)
				break
			}
		}
	}
	return found, nil
}

// Mentioning returns the processes, but for the caller and its parents, that
// have one of the folders in their command line.
func Mentioning(dirs ...string) ([]Record, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	own := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !own[pid]; {
		own[pid] = true
		s, err := ReadStat(pid)
		if err != nil {
			break
		}
		pid = s.Parent
	}
	var found []Record
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || own[pid] {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(text) == 0 {
			continue
		}
		for _, dir := range dirs {
			if !strings.Contains(string(text), dir) {
				continue
			}
			if s, err := ReadStat(pid); err == nil && !s.Dead() {
				found = append(found, Record{Name: s.Command, PID: pid, StartTime: s.StartTime})
			}
			break
		}
	}
	return found, nil
}
