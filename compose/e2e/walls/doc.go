// Package walls checks the structure of the workspace.
//
// It reads the imports of all packages, and what all programs contain, from "go list". It reports each import and each
// program that breaks a rule, with the reason for the rule. In the source it finds each place that opens a file before
// it looks what it is. It needs no rig.
package walls
