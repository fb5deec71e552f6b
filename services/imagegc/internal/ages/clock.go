package ages

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Boot is a boot of the node, and how long it has lasted.
type Boot struct {
	ID string
	// Uptime counts the time in which the machine was suspended too.
	Uptime time.Duration
}

// ReadBoot returns the present boot.
func ReadBoot() (Boot, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Boot{}, fmt.Errorf("read the boot ID: %w", err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return Boot{}, fmt.Errorf("read the uptime: %w", err)
	}
	return Boot{ID: strings.TrimSpace(string(id)), Uptime: time.Duration(ts.Nano())}, nil
}

// maxAway is how long imagegc may have been away in one boot for that time to count: imagegc has not seen which images
// were used meanwhile. It is two periods of collection.
const maxAway = 10 * time.Minute

// ranFor is how long the node has run since the earlier moment, as far as that is known.
func (b Boot) ranFor(since Boot) time.Duration {
	if b.ID == since.ID {
		return max(b.Uptime-since.Uptime, 0)
	}
	return b.Uptime
}
