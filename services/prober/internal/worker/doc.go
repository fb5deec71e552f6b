// Package worker runs one probe of one container repeatedly.
//
// It gets Facts about the container, which change, and the counts of an earlier worker of the same probe. It returns
// a Record of the newest probe. One probe runs at a time, and never more often than its period. The probe has failed
// after failureThreshold failures in a row of the same container ID. A probe that could not run does not count. A
// result that ends the container, and the result of a startup probe, is the last one for its container ID.
package worker
