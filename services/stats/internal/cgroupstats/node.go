package cgroupstats

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// bootTime is when the node started, by btime of /proc/stat; zero if it cannot be read.
func (p *proc) bootTime() time.Time {
	text, err := os.ReadFile(p.at + "/stat")
	if err != nil {
		return time.Time{}
	}
	return parseBootTime(string(text))
}

func parseBootTime(text string) time.Time {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err == nil && seconds > 0 {
				return time.Unix(seconds, 0)
			}
		}
	}
	return time.Time{}
}

// tasks counts the threads of the node and reads their limit.
func (p *proc) tasks() (Tasks, error) {
	t := Tasks{Time: time.Now()}
	for _, file := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile(p.at + "/sys/kernel/" + file)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit >= 0 && (t.Limit == nil || limit < *t.Limit) {
			t.Limit = &limit
		}
	}
	text, err := os.ReadFile(p.at + "/loadavg")
	if err != nil {
		return t, err
	}
	running, err := parseLoad(string(text))
	if err != nil {
		return t, err
	}
	t.Running = &running
	return t, nil
}

// parseLoad reads how many tasks there are from /proc/loadavg: "1.36 3.49 4.53 2/3518 3715089".
func parseLoad(text string) (int64, error) {
	fields := strings.Fields(text)
	if len(fields) < 5 {
		return 0, fmt.Errorf("/proc/loadavg: %.80q has too few fields", text)
	}
	_, total, ok := strings.Cut(fields[3], "/")
	n, err := strconv.ParseInt(total, 10, 64)
	if !ok || err != nil || n < 0 {
		return 0, fmt.Errorf("/proc/loadavg: %.80q has no number of tasks", text)
	}
	return n, nil
}
