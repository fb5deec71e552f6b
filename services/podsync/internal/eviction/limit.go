package eviction

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// ErrWithinLimit is returned for a pod that has no such limit, or does not exceed it.
var ErrWithinLimit = errors.New("the pod does not exceed the limit")

// Limit is a limit of local storage that a pod is said to exceed: of an emptyDir volume, of a container, or, if neither
// is named, of all its containers.
type Limit struct {
	EmptyDir, Container string
	// UsedBytes is what was measured.
	UsedBytes int64
}

// check compares what is used with the limit that the pod itself has.
func (l *Limit) check(p *v1.Pod) error {
	limit, what := l.of(p)
	switch {
	case limit == nil:
		return fmt.Errorf("%w: it has none of %s", ErrWithinLimit, what)
	case resource.NewQuantity(l.UsedBytes, resource.BinarySI).Cmp(*limit) <= 0:
		return fmt.Errorf("%w: it uses %d bytes of %s, of which it may use %s", ErrWithinLimit, l.UsedBytes, what, limit)
	}
	return nil
}

// of returns the pod's limit, nil if it has none, and what it is of.
func (l *Limit) of(p *v1.Pod) (limit *resource.Quantity, what string) {
	switch {
	case l.EmptyDir != "":
		for i := range p.Spec.Volumes {
			if v := &p.Spec.Volumes[i]; v.Name == l.EmptyDir && v.EmptyDir != nil {
				limit = unlessZero(v.EmptyDir.SizeLimit)
			}
		}
		return limit, "emptyDir volume " + l.EmptyDir
	case l.Container != "":
		if c := podutil.Container(&p.Spec, l.Container); c != nil {
			limit = unlessZero(c.Resources.Limits.StorageEphemeral())
		}
		return limit, "ephemeral storage of container " + l.Container
	}
	all := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	if sum, limited := all[v1.ResourceEphemeralStorage]; limited {
		limit = &sum
	}
	return limit, "ephemeral storage"
}

// unlessZero drops a limit of 0, which is none for a volume or a single container.
func unlessZero(limit *resource.Quantity) *resource.Quantity {
	if limit != nil && limit.Sign() <= 0 {
		return nil
	}
	return limit
}
