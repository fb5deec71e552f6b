// Package build builds the real programs of the rig from their Go modules.
//
// The Debian packages that they need are installed too.
//
// The modules in compose/tools pin the version of each program and of all its dependencies. The executables are in
// the cache, keyed by version, Go version, build settings and the module's go.mod and go.sum. So nothing is built
// twice, and no stale program is used. A build reports progress every few seconds. Two rigs may build at once: one
// waits for the other. An interrupted build leaves no incomplete executable.
package build
