// Package collector removes images that nobody uses when the disk runs out of space, or when they are too old.
//
// It removes what the kubelet would (pkg/kubelet/images), in the same order: images that no container has used first,
// then those whose last use is the longest ago. Besides images in use and pinned ones, it keeps those that an admitted
// pod names, since a pull may be under way.
package collector
