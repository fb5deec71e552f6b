package reading

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes reads how many processes there are and may be.
type Processes struct {
	// Proc is /proc.
	Proc string
}

// Read returns the limit and the number of running processes and threads, as the kubelet's Summary has them.
func (p Processes) Read() (limit, running int64, err error) {
	limit = math.MaxInt64
	for _, file := range []string{"sys/kernel/threads-max", "sys/kernel/pid_max"} {
		n, err := number(filepath.Join(p.Proc, file))
		if err != nil {
			return 0, 0, err
		}
		limit = min(limit, n)
	}
	path := filepath.Join(p.Proc, "loadavg")
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(text)) // such as "0.20 0.18 0.12 1/80 11206"
	if len(fields) < 4 {
		return 0, 0, fmt.Errorf("read %s: %.80q has no number of processes", path, text)
	}
	_, all, _ := strings.Cut(fields[3], "/")
	running, err = strconv.ParseInt(all, 10, 64)
	if err != nil || running < 0 {
		return 0, 0, fmt.Errorf("read %s: %.80q has no number of processes", path, text)
	}
	return limit, running, nil
}
