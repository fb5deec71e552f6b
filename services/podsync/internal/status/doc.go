// Package status tells what has become of a pod: it works out the pod's API status and
// brings it to the apiserver.
//
// Input: the pod, the runtime's state of it, why containers wait, probe results by
// container id, the status of before. Output: a v1.PodStatus (Generate, pure), patches of
// the status subresource and, at the end, the pod's deletion (Manager).
//
// Guarantees of Generate: the same input gives the same status. A container with a readiness
// probe is never ready before a prober has said so; what was said of a container id holds until
// something else is said of the same id. Restart counts, a terminal phase, the start time and
// known addresses are never taken back. A state that was not read leaves the containers' as
// they were told last.
//
// Guarantees of Manager: podsync alone writes a pod's status. The newest status of each pod
// arrives, however long the apiserver is away; statuses of one pod arrive in order, those of
// different pods do not wait for each other; a status that the apiserver has already is not
// written again; what another writes into a field of ours is written over after 10 s, whenever
// it came; conditions of others are left alone. A pod is deleted from the API only after
// its final status has arrived.
package status
