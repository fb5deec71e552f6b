// Package conformance runs upstream's end-to-end suite against a rig with the
// real kubelet and with microlet, and judges what comes out.
//
// Input: a selection of specs (a label filter and a regular expression over
// names), and three files of the repository: the list of specs that the real
// kubelet is known to pass, the reasons why microlet does not pass some of
// them yet, and the page that tells users about it. Output: for each agent
// the suite's JUnit and JSON reports and its log, and a table of both agents
// side by side. Guarantees: a spec of the kubelet's list that is missing from
// the suite, skipped, or not passed by an agent that ran is an error; so is a
// selection of which nothing is known or nothing ran. What failed once is run
// a second time with less in parallel, and the table says so: nothing is
// counted as passed that did not pass.
package conformance
