// Package podstatus works out a pod's API status.
//
// Input: the pod, the runtime's state of it, why containers wait, probe results by container id, the status of before.
// Output: a v1.PodStatus. It keeps nothing and asks nobody.
//
// Guarantees: the same input gives the same status. A container with a readiness probe is never ready before a prober has
// said so; what was reported of a container id holds until something else is reported of the same id. Restart counts, a
// terminal phase, the start time and known addresses are never taken back. A state that was not read leaves the
// containers' as they were reported last.
package podstatus
