// Package images builds the container images of the rig and pushes them to its registry.
//
// It needs a static busybox, the agnhost program, and a C compiler for the pause program. The cache holds an OCI
// layout whose images have the names and tags of Kubernetes' tests. The same input gives the same digests on every
// machine: times are fixed, files are sorted, and there are no user names.
package images
