// Package build makes the real programs of the rig from their Go modules, and
// installs the Debian packages that they need.
//
// Input: the folder compose/tools, whose modules pin each program's version
// and those of all its dependencies, and the cache folder. Output: executables
// in the cache, keyed by version, Go version, build settings and the module's
// go.mod and go.sum, so that nothing is built twice and nothing stale is used.
// Guarantees: progress is reported at least every few seconds; two rigs may
// build at once, one waits for the other; a build that is cut off leaves no
// half-written executable.
package build
