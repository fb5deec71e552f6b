// Package worker looks after pods, one goroutine a pod.
//
// Inputs: pods from their sources, wake-ups from anywhere, a timer. A worker that is
// woken reads what the runtime has of its pod, lets package decide say what is to be
// done, does it, reads again and reports. Outputs: calls to the runtime, the pod's
// status (package statusmanager), entries of the bus (package publish), Kubernetes Events.
//
// Guarantees: a wake-up carries no state, so one that is lost, doubled or late costs
// time at most. A pod's worker waits for no other pod's, save for the bounded number of
// runtime calls. Nothing is stopped because something is missing: only the pod's own
// object, or its end after every source has been heard, ends a pod. A worker that is
// overtaken by its pod's deletion drops what it does and goes on with that.
package worker
