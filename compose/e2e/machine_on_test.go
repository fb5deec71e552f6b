//go:build machine

package e2e

import (
	"os"

	"github.com/microlet/microlet/compose/rig"
)

const onMachine = true

// cgroupDriver is systemd, unless the environment names cgroupfs.
var cgroupDriver = os.Getenv("MICROLET_CGROUP_DRIVER")

var besidesThere = []string{rig.GroupKubelet}
