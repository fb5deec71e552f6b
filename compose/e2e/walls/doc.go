// Package walls checks which packages may import which others.
//
// It reads the direct imports of all packages of the workspace from "go list", and reports each import that breaks a
// rule, with the reason for the rule. It needs no rig.
package walls
