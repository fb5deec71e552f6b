package rig

import (
	"fmt"
	"time"
)

// SetAgentWatchdog sets what Options.AgentWatchdog says, for the agent's next start.
func (i *Instance) SetAgentWatchdog(d time.Duration) error {
	if d == 0 {
		return fmt.Errorf("agent's watchdog %s: use a period, or one below 0 to switch it off", d)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.r.Watchdog = d
	return nil
}
