// Package podsync runs the pods of a node.
//
// Its pods come from the API server, from manifests, and from "microlet run-pod". It is the only process that opens
// the CRI socket; other services use its CRI gateway. It manages sandboxes, containers, volumes, cgroups and
// folders, writes the pod status to the API and PODS, POD_STATUS and its keys of NODE to the bus, and records
// Kubernetes Events in the outbox.
//
// When the machine shuts down, it ends the pods by priority, and logind waits for it.
//
// A restart touches no container, because podsync reads all state again from the runtime and the API. No pod needs
// the bus or another service to start, restart or stop. No pod waits for another, except for the limited number of
// runtime calls. A pod with an unsupported field is refused, and its status says so.
package podsync
