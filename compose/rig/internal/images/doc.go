// Package images makes the container images of the rig and pushes them to its
// registry.
//
// Input: a static busybox, the agnhost program and a C compiler for the pause
// program. Output: an OCI layout in the cache, whose images carry the names
// and tags that upstream's tests use. Guarantees: the same inputs give the
// same digests on every machine (fixed times, sorted files, no user names),
// and what was made once is taken from the cache.
package images
