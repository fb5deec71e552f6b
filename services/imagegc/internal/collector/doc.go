// Package collector removes unused images when the disk runs out of space, or when they are too old.
//
// It removes what the kubelet would (pkg/kubelet/images), in the same order: first images that no container has used,
// then the least recently used. Besides images in use and pinned ones, it keeps those that an admitted pod names, since
// a pull may be under way.
package collector
