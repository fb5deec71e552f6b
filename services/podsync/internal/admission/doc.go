// Package admission decides whether this node may start a pod at all.
//
// Inputs: a pod as its source gave it, the pods that were admitted before it, the Node.
// Outputs: a Verdict, the rejected pod's reason and message in the kubelet's words.
//
// Guarantees: one pod is judged at a time, against all that were admitted and have not
// ended. What runs is never rejected. The order is that of creation, so that a restart
// decides as the process before it did. A pod waits for no other, save for those that are
// being preempted when it would not fit without their end.
package admission
