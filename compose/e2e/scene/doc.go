// Package scene is what a scenario has at hand: a node in a rig, a namespace of its own on it, and the record of every
// change.
//
// Each package of scenarios has one rig (compose/rig), with the microlet binary of the checkout. Scenarios check the
// record, never samples (internal/record), and poll only to wait. A run fails if it leaves anything of the rig on the
// machine.
package scene
