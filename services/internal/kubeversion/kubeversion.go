// Package kubeversion names the version of Kubernetes whose kubelet microlet replaces.
package kubeversion

const (
	// MajorMinor is the version of microlet's behaviour, feature gates and settings.
	MajorMinor = "1.37"
	// Previous is the version before.
	Previous = "1.36"
	// Version is the release of it that microlet is compared with.
	Version = MajorMinor + ".1"
)
