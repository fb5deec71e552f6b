// Package conformance runs the end-to-end suites of Kubernetes with the real kubelet and with microlet.
//
// The suites are that of the cluster and that of the node. A label filter and a regular expression select the specs.
// Files in the repository list the specs that the kubelet passes, why microlet does not pass some of them, and why
// the kubelet does not pass others. The output is JUnit, JSON and a log for each agent, and a table of both.
//
// It is an error if a spec of the kubelet's list is missing, is skipped, or does not pass with an agent that ran, if
// nothing was selected, or if the kubelet does not pass a spec without a known reason. A failed spec runs a second
// time with less parallelism, and the table marks it.
package conformance
