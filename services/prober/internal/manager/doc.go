// Package manager gives each probe of the pods that are assigned to this replica a worker.
//
// Its inputs are the buckets PODS, POD_STATUS and ASSIGNMENT, and PROBE_RESULTS as far as the workers
// before had come. Its outputs are PROBE_RESULTS, Events in the outbox, and metrics with the kubelet's
// names.
//
// It guarantees that nothing is probed before every bucket was read once, that a pod that moves to
// another replica is left with its results, and that what is unknown changes nothing: a pod whose
// entry is missing is not forgotten before its writer has said so, which package bus sees to.
package manager
