//go:build !long

package scene

import (
	"time"

	"github.com/microlet/microlet/compose/rig"
)

const (
	// SteadyPods is how many pods a scenario starts with that nothing may touch.
	SteadyPods = 5
	// Kills is how often a scenario kills the same thing.
	Kills = 1
	// Outage is how long something is away.
	Outage = 15 * time.Second
	// defaultAgent is whom a run starts with.
	defaultAgent = rig.AgentMicrolet
)
