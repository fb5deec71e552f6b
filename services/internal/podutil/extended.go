package podutil

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// IsExtended reports whether a resource is of a domain of its own, such as example.com/gpu: a device plugin, an
// operator or a driver offers it, and not Kubernetes.
func IsExtended(name v1.ResourceName) bool {
	text := string(name)
	if !strings.Contains(text, "/") || strings.Contains(text, v1.ResourceDefaultNamespacePrefix) ||
		strings.HasPrefix(text, v1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+text)) == 0
}

// Extended returns the extended resources of which a container has more than none, ordered by name. They are in its
// limits: a request of one equals its limit.
func Extended(c *v1.Container) []v1.ResourceName {
	var names []v1.ResourceName
	for name, limit := range c.Resources.Limits {
		if IsExtended(name) && limit.Sign() > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
