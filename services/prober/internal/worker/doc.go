// Package worker probes one container for one purpose, for as long as it is asked to.
//
// Its inputs are Facts about the container, which change, and what an earlier worker of the same
// probe has counted. Its output is the Record of the newest probe.
//
// It guarantees that one probe runs at a time and never more often than its period, that a failure is
// a verdict only after failureThreshold failures in a row of this container id and of no other, and
// that a probe which could not be run counts as nothing. A verdict that ends the container, and one
// of a startup probe, is the last of its container id.
package worker
