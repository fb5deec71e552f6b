package machine

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Processors are those that this process may run on.
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for the own processors: %w", err)
	}
	var all []int
	for i := 0; len(all) < set.Count(); i++ {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	return all, nil
}

// Pin lets a process, and what it starts from now on, run on these processors only.
func Pin(pid int, processors ...int) error {
	var set unix.CPUSet
	for _, p := range processors {
		set.Set(p)
	}
	// A thread that is not pinned yet may start one that is not either, so it looks until there is no new one.
	pinned := map[int]bool{}
	for before := -1; before < len(pinned); {
		before = len(pinned)
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return fmt.Errorf("pin process %d: %w", pid, err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || pinned[id] {
				continue
			}
			if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("pin thread %d of process %d to processors %v: %w", id, pid, processors, err)
			}
			pinned[id] = true
		}
	}
	return nil
}
