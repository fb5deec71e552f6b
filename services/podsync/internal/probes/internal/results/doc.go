// Package results provides the probe results of podsync's containers.
//
// It reads PROBE_RESULTS and the assignments. It returns the results of a pod by container ID, and wakes the pod's
// worker when one changes. A result counts only if it belongs to the pod's newest assignment. It stays until another
// one comes: an empty or unreachable bus changes nothing.
package results
