// Package walls holds the project's packages to the architecture: who may import what.
//
// Input: the direct imports of all packages of the workspace, from "go list". Output: each import that
// breaks a wall, with the wall's reason. It needs no rig.
package walls
