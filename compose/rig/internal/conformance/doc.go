// Package conformance runs upstream's end-to-end suites, that of the cluster or
// that of the node, against a rig with the real kubelet and with microlet, and
// judges what comes out.
//
// Input: a selection of a suite's specs (a label filter and a regular
// expression over names), and files of the repository: the list of specs that
// the real kubelet is known to pass, the reasons why microlet does not pass
// some of them yet, for the suite of the node the reasons why the kubelet does
// not pass the others of the selection, and the page that tells users about it. Output: for each agent
// the suite's JUnit and JSON reports and its log, and a table of both agents
// side by side. Guarantees: a spec of the kubelet's list that is missing from
// the suite, skipped, or not passed by an agent that ran is an error; so is a
// selection of which nothing is known or nothing ran, and a spec that the
// kubelet does not pass for no known reason. What failed once is run
// a second time with less in parallel, and the table says so: nothing is
// counted as passed that did not pass.
package conformance
