package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// JoinCgroups moves this process into the cgroups of another, in every hierarchy, and returns what moves it back.
func JoinCgroups(pid int) (leave func() error, err error) {
	home, err := cgroupsOf("self")
	if err != nil {
		return nil, err
	}
	away, err := cgroupsOf(strconv.Itoa(pid))
	if err != nil {
		return nil, err
	}
	leave = func() error { return enter(home) }
	if err := enter(away); err != nil {
		return nil, errors.Join(err, leave())
	}
	return leave, nil
}

// MemoryCgroup returns the folder of a process's cgroup of the controller memory, with cgroup v1.
func MemoryCgroup(pid int) (string, error) {
	all, err := cgroupsOf(strconv.Itoa(pid))
	if err != nil {
		return "", err
	}
	for _, dir := range all {
		if _, err := os.Stat(filepath.Join(dir, "memory.limit_in_bytes")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("process %d is in no cgroup of the controller memory: %q", pid, all)
}

// enter moves this process into cgroups.
func enter(folders []string) error {
	for _, dir := range folders {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return fmt.Errorf("enter a cgroup: %w", err)
		}
	}
	return nil
}

// cgroupsOf returns the folders of a process's cgroups, of each hierarchy that is mounted.
func cgroupsOf(process string) ([]string, error) {
	text, err := os.ReadFile("/proc/" + process + "/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read cgroups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("read cgroups: %w", err)
	}
	return cgroupFolders(string(text), string(mounts)), nil
}

// cgroupFolders finds the lines of /proc/<pid>/cgroup, each "<number>:<controllers>:<path>", among the mounts.
func cgroupFolders(cgroups, mounts string) []string {
	var folders []string
	for line := range strings.Lines(cgroups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for mount := range strings.Lines(mounts) {
			m := strings.Fields(mount) // what, where, type, options
			if len(m) < 4 {
				continue
			}
			options := strings.Split(m[3], ",")
			unified := fields[1] == "" && m[2] == "cgroup2"
			if unified ||
				fields[1] != "" && m[2] == "cgroup" && slices.Contains(options, strings.Split(fields[1], ",")[0]) {
				folders = append(folders, filepath.Join(m[1], fields[2]))
				break
			}
		}
	}
	return folders
}
