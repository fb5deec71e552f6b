// Package pods runs one worker per pod, each in its own goroutine.
//
// A worker wakes for its pod's source, for a hint, for a probe result or for a timer. It reads the runtime, calls
// package decide, executes the actions, reads again and reports the status. Package status sends the status to the API
// and to the bus.
//
// A wake carries no data, so a lost, duplicated or late wake costs time at most. A worker waits for no other worker,
// except for the limited number of runtime calls. A missing object stops nothing: only the deletion of the pod
// object, or its absence after every source has delivered its list, ends a pod. If the pod is deleted, the worker
// drops its current work and ends the pod.
package pods
