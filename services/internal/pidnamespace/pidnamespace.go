// Package pidnamespace finds out whether this process knows other processes by the numbers that /proc shows.
package pidnamespace

import (
	"fmt"

	"github.com/prometheus/procfs"
)

// IsOwn reports whether this process is in a PID namespace below the one that /proc shows, as in a container with the
// machine's /proc.
func IsOwn() (bool, error) {
	self, err := procfs.Self()
	if err != nil {
		return false, fmt.Errorf("find the own PID namespace: %w", err)
	}
	status, err := self.NewStatus()
	if err != nil {
		return false, fmt.Errorf("find the own PID namespace: %w", err)
	}
	return len(status.NSpids) > 1, nil // one number for each namespace, from that of /proc on
}
