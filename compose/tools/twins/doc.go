// Package twins compares functions of microlet with their twins in the kubelet.
//
// Each pair gives the same random input to the kubelet's own function and to ours. A difference that
// differences.explained does not name fails the test, with the smallest input that shows it.
// scripts/twins builds and runs it: it puts the hooks, which open the kubelet's unexported functions,
// beside the kubelet's source. docs/testing.md says how to add a pair.
package twins
