package mounter

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
)

// leftBehind counts the children of earlier processes of the service that have not ended: the kernel holds them. Each
// was killed with its parent. A process of a container that takes the name is in another cgroup.
func leftBehind(proc, name string) int {
	own, err := os.ReadFile(filepath.Join(proc, "self", "cgroup"))
	if err != nil {
		return 0
	}
	stats, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return 0
	}
	count := 0
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil || !isDead(string(text), name) {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cgroup"))
		if err == nil && bytes.Equal(cgroup, own) {
			count++
		}
	}
	return count
}

// isDead reports whether a line of proc_pid_stat(5) describes a process of that name whose first thread waits in the
// kernel, or is a zombie, which the kernel keeps for the other threads.
func isDead(stat, name string) bool {
	_, rest, ok := strings.Cut(stat, "("+name+") ") // "1234 (microlet-mounte) Z 1 …"
	return ok && (strings.HasPrefix(rest, "Z ") || strings.HasPrefix(rest, "D "))
}
