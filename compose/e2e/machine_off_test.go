//go:build !machine

package e2e

// onMachine says that the node has a machine of its own in this run.
const onMachine = false

// cgroupDriver is the one that the rig chooses by itself.
const cgroupDriver = ""

// besidesThere are groups of programs that the scenarios of such a node need, in place of besides.
var besidesThere []string
