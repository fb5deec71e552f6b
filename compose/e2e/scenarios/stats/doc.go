// Package stats shows who reads the node's metrics: Prometheus, the autoscaler; and what they get while stats or the
// runtime is down.
package stats
