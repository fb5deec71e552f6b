// Package cli implements the command line of rig.
//
// Progress goes to stderr, and output for other programs goes to stdout. An error says what failed and what to do.
package cli
