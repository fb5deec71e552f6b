// Package probes is what podsync knows of its containers from the prober.
//
// Its input is PROBE_RESULTS and the pods' assignments. Its output is, for each pod, the verdicts by
// container id, and a wake-up of the pod's worker when one changes.
//
// It guarantees that a result counts only if it was made under the pod's newest assignment, and that
// what counted once holds until another comes: a bus that is empty or away changes nothing.
package probes
