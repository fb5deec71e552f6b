//go:build long

package scene

import (
	"time"

	"github.com/microlet/microlet/compose/rig"
)

const (
	// SteadyPods is how many pods a scenario starts with that nothing may touch.
	SteadyPods = 20
	// Kills is how often a scenario kills the same thing.
	Kills = 5
	// Outage is how long something is away.
	Outage = time.Minute
	// defaultAgent is whom a run starts with: the kubelet, so that what is compared with it can be taken from it.
	defaultAgent = rig.AgentKubelet
)
