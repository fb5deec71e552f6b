package nodeinfo

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// Message packs both lists, and the firmware's UUID when it is known, for NODE/capacity.
func Message(capacity, allocatable v1.ResourceList, systemUUID string) *podsyncv1.Capacity {
	return &podsyncv1.Capacity{
		Capacity: quantities(capacity), Allocatable: quantities(allocatable), SystemUuid: systemUUID,
	}
}

func quantities(list v1.ResourceList) map[string]string {
	out := make(map[string]string, len(list))
	for name, q := range list {
		out[string(name)] = q.String()
	}
	return out
}

// FromMessage unpacks NODE/capacity.
func FromMessage(m *podsyncv1.Capacity) (capacity, allocatable v1.ResourceList, err error) {
	if capacity, err = Resources("capacity", m.GetCapacity()); err != nil {
		return nil, nil, err
	}
	if allocatable, err = Resources("allocatable", m.GetAllocatable()); err != nil {
		return nil, nil, err
	}
	return capacity, allocatable, nil
}

// Resources reads quantities by the names of their resources. An error names the field.
func Resources(field string, in map[string]string) (v1.ResourceList, error) {
	out := make(v1.ResourceList, len(in))
	for name, value := range in {
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("%s.%s=%s is no quantity, write it like 500m or 1Gi: %w", field, name, value, err)
		}
		out[v1.ResourceName(name)] = q
	}
	return out, nil
}
