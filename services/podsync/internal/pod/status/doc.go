// Package status computes the API status of a pod.
//
// Its input is the pod, the runtime state, the reasons why containers wait, the probe results by container ID, and
// the previous status. The same input gives the same status. A container with a readiness probe is not ready before
// its first result. A reported value of a container ID stays until another is reported. Restart counts, a terminal
// phase, the start time and known addresses never change back. If the state was not read, the container statuses
// stay as reported.
package status
