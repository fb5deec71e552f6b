//go:build !machine

package scene

import "time"

// onMachine says that the node has a machine of its own in this run.
const onMachine = false

// Patience is how long something may take that has no limit of its own, on a machine that is busy.
const Patience = 2 * time.Minute

// cgroupDriver is the one that the rig chooses by itself.
const cgroupDriver = ""

// alwaysWith are groups of programs that each run has.
var alwaysWith []string
