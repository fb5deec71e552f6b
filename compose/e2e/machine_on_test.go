//go:build machine

package e2e

import (
	"os"
	"time"

	"github.com/microlet/microlet/compose/rig"
)

const onMachine = true

// Patience is how long something may take that has no limit of its own. A machine in a busy one is slow twice.
const Patience = 5 * time.Minute

// cgroupDriver is systemd, unless the environment names cgroupfs.
var cgroupDriver = os.Getenv("MICROLET_CGROUP_DRIVER")

var besidesThere = []string{rig.GroupKubelet}
