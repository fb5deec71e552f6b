// Package e2e contains the end-to-end scenarios: microlet as the node of a real control plane with a real runtime.
//
// Each scenario runs in a rig (compose/rig) with the microlet binary of the checkout. It is written once. By default
// it runs with few pods and outages of at most 15 s. With the build tag "long" it runs in full. With the tag
// "bench", only the comparison with the real kubelet runs and prints tables. The tag "machine" is for a node on its
// own machine.
//
// Scenarios check a record of every change, never samples (internal/record), and poll only to wait. No scenario is
// skipped: a missing program fails it. A run fails if it leaves anything of the rig on the machine.
package e2e
