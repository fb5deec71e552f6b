// Package allocation decides which resources the node's pods have, and changes them while pods run (KEP-1287).
//
// There are three sets of resources of a pod: those that its spec asks for, those that the node has granted, and those
// that were given to the runtime and the cgroups. Whoever counts pods or configures containers takes a pod as Apply
// returns it, with what is granted. A pod whose spec asks for other resources waits for a decision. Those that wait are
// decided upon in the kubelet's order, whenever a pod has changed, has come or has ended. A grant is judged by the
// admission, and counts when it is on the disk. The pod's worker then carries it out and reports how far it came.
//
// What is granted and what was given are in the kubelet's files of the root folder, so that a restart, and a kubelet
// that takes over, go on from there. A file that cannot be read never stops a start: what the pods' status shows takes
// its place.
package allocation
