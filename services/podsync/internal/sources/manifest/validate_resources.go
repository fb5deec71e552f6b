package manifest

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
)

// standardResources are those that a container may have without a domain in their name.
var standardResources = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}

func hugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// native reports whether the resource is Kubernetes' own, of which more may be promised than there is.
func native(name v1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), "kubernetes.io/")
}

func (c *check) resources(at *field.Path, r *v1.ResourceRequirements) {
	c.quantities(at, r, c.resourceName)
	if len(r.Claims) > 0 && len(c.pod.Spec.ResourceClaims) == 0 {
		c.add(field.NotFound(at.Child("claims"), r.Claims[0].Name))
	}
}

// quantities checks limits, requests, and the one against the other.
func (c *check) quantities(at *field.Path, r *v1.ResourceRequirements,
	resourceName func(*field.Path, v1.ResourceName)) {
	limits, requests := at.Child("limits"), at.Child("requests")
	huge, other := false, false
	for _, part := range []struct {
		at   *field.Path
		list v1.ResourceList
	}{{limits, r.Limits}, {requests, r.Requests}} {
		for name, quantity := range part.list {
			at := part.at.Key(string(name))
			huge = huge || hugePages(name)
			other = other || name == v1.ResourceCPU || name == v1.ResourceMemory
			resourceName(at, name)
			if quantity.Sign() < 0 {
				c.invalid(at, quantity.String(), "must be greater than or equal to 0")
			}
			if !native(name) || hugePages(name) {
				if quantity.MilliValue()%1000 != 0 {
					c.invalid(at, quantity.String(), "must be an integer")
				}
			}
			if hugePages(name) && !wholePages(name, quantity) {
				c.invalid(at, quantity.String(), "must be a multiple of the page size of "+string(name))
			}
		}
	}
	if huge && !other {
		c.forbidden(at, "HugePages require cpu or memory: request one of them too")
	}
	for name, request := range r.Requests {
		limit, limited := r.Limits[name]
		overcommit := native(name) && !hugePages(name)
		switch {
		case limited && request.Cmp(limit) > 0:
			c.invalid(requests, request.String(),
				fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		case !overcommit && limited && request.Cmp(limit) != 0:
			c.invalid(requests, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case !overcommit && !limited:
			c.required(limits, fmt.Sprintf("a limit must be set for %s, which cannot be overcommitted", name))
		}
	}
}

// wholePages reports whether an amount of huge pages is a multiple of their size.
func wholePages(name v1.ResourceName, amount resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), v1.ResourceHugePagesPrefix))
	return err == nil && size.Sign() > 0 && size.MilliValue()%1000 == 0 && amount.Value()%size.Value() == 0
}

func (c *check) resourceName(at *field.Path, name v1.ResourceName) {
	if !native(name) && (strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix) ||
		len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+string(name))) > 0) {
		c.invalid(at, name, "must not begin with requests., nor be too long for it")
	}
	c.invalid(at, name, validation.IsQualifiedName(string(name))...)
	if !strings.Contains(string(name), "/") && !hugePages(name) && !slices.Contains(standardResources, name) {
		c.invalid(at, name, "must be a standard resource for containers: cpu, memory, ephemeral-storage or "+
			"hugepages-<size>, or have a domain, such as example.com/gpu")
	}
}

// podResources are those of the pod as a whole, beneath which its containers must fit.
func (c *check) podResources(at *field.Path) {
	r := c.pod.Spec.Resources
	if r == nil {
		return
	}
	c.quantities(at, r, func(at *field.Path, name v1.ResourceName) {
		c.resourceName(at, name)
		if !resourcehelper.IsSupportedPodLevelResource(name) {
			c.invalid(at, name, "cannot be set for a pod as a whole: use cpu, memory or hugepages-<size>")
		}
	})
	if len(r.Claims) > 0 {
		c.forbidden(at.Child("claims"), "may not be set for a pod as a whole: remove it")
	}
	for i := range c.pod.Spec.Containers {
		for name, limit := range c.pod.Spec.Containers[i].Resources.Limits {
			if most, limited := r.Limits[name]; limited && limit.Cmp(most) > 0 {
				c.invalid(at.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", most.String()))
			}
		}
	}
	requested := resourcehelper.AggregateContainerRequests(c.pod, resourcehelper.PodResourcesOptions{})
	for name, most := range r.Requests {
		if sum := requested[name]; sum.Cmp(most) > 0 {
			c.invalid(at.Child("requests").Key(string(name)), most.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String()))
		}
	}
}
