// Package e2e holds the end-to-end scenarios: microlet as the node of a real control plane with a
// real runtime.
//
// Its input is a rig (compose/rig) and the microlet executable of the checkout. Each scenario is
// written once. It runs short by default, with few pods and outages of 15 s at most; with the build
// tag "long" it runs with the numbers in full; with the tag "bench" only the comparison with the real
// kubelet runs, which prints tables.
//
// It guarantees that what happened is judged from a record of every change, never from samples: see
// internal/record. It polls only to wait. No scenario is skipped; a program that is missing fails it.
// When the scenarios have ended nothing of the rig is left on the machine, or the run has failed.
package e2e
