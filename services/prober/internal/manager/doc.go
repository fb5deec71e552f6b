// Package manager runs a worker for each probe of the pods that are assigned to this replica.
//
// It reads PODS, POD_STATUS, ASSIGNMENT, and the PROBE_RESULTS of earlier workers. It writes PROBE_RESULTS, Events
// and the kubelet's metrics. It starts no probe before it has read every bucket once. A pod that moves to another
// replica keeps its results. Unknown data changes nothing: the manager drops a pod only after the writer of its
// entry has said that it is gone (package bus).
package manager
