// Package mounts finds and removes the mounts of a rig.
//
// Input: the folders that belong to the rig. Output: nothing is mounted on
// them or below them. Guarantee: a mount elsewhere is never touched.
package mounts
