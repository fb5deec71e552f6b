package childpool

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
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
		if err != nil || !isDead(string(text), name, os.Getpid()) {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cgroup"))
		if err == nil && bytes.Equal(cgroup, own) {
			count++
		}
	}
	return count
}

// isDead reports whether a line of proc_pid_stat(5) describes a process of that name, with another parent than this
// one, whose first thread waits in the kernel, or which is a zombie that the kernel keeps for the other threads.
func isDead(stat, name string, parent int) bool {
	_, rest, ok := strings.Cut(stat, "("+name+") ") // "1234 (microlet-mounte) Z 1 …"
	fields := strings.Fields(rest)
	return ok && len(fields) > 1 && (fields[0] == "Z" || fields[0] == "D") && fields[1] != strconv.Itoa(parent)
}
