package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Use is what the threads of a process have used so far. Threads that have ended are not counted.
type Use struct {
	// CPU is the time that they ran, by the scheduler's clock of nanoseconds.
	CPU time.Duration
	// Waits are how often they gave up the processor to wait, and Preempted how often it was taken from them. A thread
	// that waits is woken again: Waits are the wakes of the process.
	Waits, Preempted int64
}

// Sub is what has been used since before.
func (u Use) Sub(before Use) Use {
	return Use{u.CPU - before.CPU, u.Waits - before.Waits, u.Preempted - before.Preempted}
}

// ReadUse asks /proc what a process has used.
func ReadUse(pid int) (sum Use, err error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return Use{}, fmt.Errorf("list the threads of %d: %w", pid, err)
	}
	for _, thread := range threads {
		dir := fmt.Sprintf("%d/task/%s", pid, thread.Name())
		use, err := readThread(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return Use{}, err
		}
		sum.CPU += use.CPU
		sum.Waits += use.Waits
		sum.Preempted += use.Preempted
	}
	return sum, nil
}

func readThread(dir string) (u Use, err error) {
	text, err := os.ReadFile("/proc/" + dir + "/schedstat")
	if err != nil {
		return u, err
	}
	ran, _, _ := strings.Cut(string(text), " ")
	nanoseconds, err := strconv.ParseInt(ran, 10, 64)
	if err != nil {
		return u, fmt.Errorf("/proc/%s/schedstat: %w", dir, err)
	}
	u.CPU = time.Duration(nanoseconds)
	status, err := os.ReadFile("/proc/" + dir + "/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		var to *int64
		switch name {
		case "voluntary_ctxt_switches":
			to = &u.Waits
		case "nonvoluntary_ctxt_switches":
			to = &u.Preempted
		default:
			continue
		}
		if *to, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil {
			return u, fmt.Errorf("/proc/%s/status: %w", dir, err)
		}
	}
	return u, nil
}
