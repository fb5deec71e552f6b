// Package archive downloads packages of a given Debian release, whatever release this machine runs.
//
// apt verifies the signatures of the packages. The package lists are in a separate folder, so the machine's own apt
// does not see the other release.
package archive
