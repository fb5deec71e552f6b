//go:build !long && !bench

package e2e

import (
	"time"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// What a short run is made of: it shows each thing once.
const (
	SteadyPods = 5
	kills      = 1
	Outage     = 15 * time.Second
	stopTime   = 12 * time.Second
	crowdPods  = 15

	probedPods    = 6
	probeKillTime = 20 * time.Second

	chaosTime  = 40 * time.Second
	chaosPods  = 12
	randomPods = 200

	FirstAgent = rig.AgentMicrolet
)

// besides are groups of programs that the rig has for these scenarios.
var besides []string

var (
	// Of each pod that turns ill, how long after its start.
	illAfter = []time.Duration{15 * time.Second}

	stoppedRoles = []role.Role{role.Bus}
	hungRoles    = []role.Role{role.PLEG}
)

// chaosSeed is the same each time, so that a change is to blame for what a run finds.
func chaosSeed() uint64 { return 1 }
