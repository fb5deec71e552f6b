//go:build long && !bench

package e2e

import (
	"time"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// What a long run is made of.
const (
	SteadyPods = 20
	kills      = 5
	Outage     = time.Minute
	stopTime   = 45 * time.Second
	crowdPods  = 60

	probedPods    = 100
	probeKillTime = 2 * time.Minute

	// The kubelet is first, so that what is compared with it can be taken from it.
	chaosTime  = 10 * time.Minute
	chaosPods  = 25
	randomPods = 3000

	FirstAgent = rig.AgentKubelet
)

// besides are groups of programs that the rig has for these scenarios.
var besides = []string{rig.GroupPrometheus, rig.GroupMetricsServer}

var (
	// Of each pod that turns ill, how long after its start.
	illAfter = []time.Duration{15 * time.Second, 25 * time.Second, 45 * time.Second, 65 * time.Second, 85 * time.Second}

	stoppedRoles = []role.Role{role.Bus, role.Podsync, role.PLEG, role.Prober, role.NodeStatus, role.NodeAPI, role.Up}
	hungRoles    = stoppedRoles
)

// chaosSeed is another each time.
func chaosSeed() uint64 { return uint64(time.Now().UnixNano()) }
