//go:build long

package services

import (
	"time"

	"github.com/microlet/microlet/proto/role"
)

// What a long run is made of.
const (
	stopTime = 45 * time.Second

	probedPods    = 100
	probeKillTime = 2 * time.Minute

	chaosTime = 10 * time.Minute
	chaosPods = 25
)

var (
	// Of each pod that turns ill, how long after its start.
	illAfter = []time.Duration{15 * time.Second, 25 * time.Second, 45 * time.Second, 65 * time.Second, 85 * time.Second}

	stoppedRoles = []role.Role{role.Bus, role.Podsync, role.PLEG, role.Prober, role.NodeStatus, role.NodeAPI, role.Up}
	hungRoles    = stoppedRoles
)

// chaosSeed is another each time.
func chaosSeed() uint64 { return uint64(time.Now().UnixNano()) }
