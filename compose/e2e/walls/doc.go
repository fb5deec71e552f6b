// Package walls checks the structure of the workspace.
//
// It reads the package comments and direct imports of all packages from "go list". It reports each import that breaks a
// rule, with the reason for the rule, each package that imports too many others, and each package comment that names
// two jobs. In the source it finds each place that opens a file before it looks what it is. It needs no rig.
package walls
