//go:build machine

package scene

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

// alwaysWith are groups of programs that each such run has: the disk of a machine is built with them.
var alwaysWith = []string{rig.GroupKubelet}
