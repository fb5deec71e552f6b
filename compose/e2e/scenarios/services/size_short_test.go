//go:build !long

package services

import (
	"time"

	"github.com/microlet/microlet/proto/role"
)

// What a short run is made of: it shows each thing once.
const (
	stopTime = 12 * time.Second

	probedPods    = 6
	probeKillTime = 20 * time.Second

	chaosTime = 40 * time.Second
	chaosPods = 12
)

var (
	// Of each pod that turns ill, how long after its start.
	illAfter = []time.Duration{15 * time.Second}

	stoppedRoles = []role.Role{role.Bus}
	hungRoles    = []role.Role{role.PLEG}
)

// chaosSeed is the same each time, so that a change is to blame for what a run finds.
func chaosSeed() uint64 { return 1 }
