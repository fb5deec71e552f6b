// Package cli is the command line of rig.
//
// Input: arguments and signals. Output: progress on stderr, what can be used
// by other programs on stdout, and an exit status. Guarantee: an error names
// what failed and what can be done.
package cli
