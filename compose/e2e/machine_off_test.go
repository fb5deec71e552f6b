//go:build !machine

package e2e

import "time"

// onMachine says that the node has a machine of its own in this run.
const onMachine = false

// Patience is how long something may take that has no limit of its own, on a machine that is busy.
const Patience = 2 * time.Minute

// cgroupDriver is the one that the rig chooses by itself.
const cgroupDriver = ""

// besidesThere are groups of programs that the scenarios of such a node need, in place of besides.
var besidesThere []string
