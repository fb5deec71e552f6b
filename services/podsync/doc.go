// Package podsync makes the pods of a node run.
//
// Inputs: the pods that the apiserver binds to this node, those of manifests, and those that
// root asks for here; the container runtime's CRI
// socket, which no other process opens; hints from pleg. Outputs: sandboxes and
// containers, volumes, cgroups and folders; Pod status in the API; PODS, POD_STATUS and
// its keys of NODE on the bus; Kubernetes Events in the outbox; the CRI gateway.
//
// Guarantees: a restart touches no container, since all that decides is read again from
// the runtime and the API. Neither the bus nor another service of the node is needed to
// start, restart or stop a pod. One pod never waits for another, save for a bounded
// number of runtime calls. A pod that asks for what is not built is refused and says so.
package podsync
