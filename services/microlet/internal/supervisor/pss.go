package supervisor

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// PSS reads the proportional set size of a process in bytes: its own memory, and its share of what
// it shares. It needs the right to trace the process.
func PSS(pid int) (uint64, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/smaps_rollup"
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("memory of a process: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) == 3 && string(fields[0]) == "Pss:" {
			kib, err := strconv.ParseUint(string(fields[1]), 10, 54)
			if err != nil {
				return 0, fmt.Errorf("memory of a process: %s: %w", path, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("memory of a process: %s has no Pss", path)
}
