package nodeinfo

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Reservation is what pods may not have.
type Reservation struct {
	// System and Kube are systemReserved and kubeReserved: quantities by resource name.
	System, Kube map[string]string
	// EvictionHard is evictionHard: of it memory.available and nodefs.available are kept free, each a
	// quantity or a percentage.
	EvictionHard map[string]string
	// IgnoreEviction leaves EvictionHard out (--experimental-allocatable-ignore-eviction).
	IgnoreEviction bool
}

// The eviction signals whose thresholds lower what is allocatable.
var evictionSignals = map[string]v1.ResourceName{
	"memory.available": v1.ResourceMemory,
	"nodefs.available": v1.ResourceEphemeralStorage,
}

// Allocatable returns what of the capacity pods may use: the capacity without what is reserved, and
// memory without the huge pages, which no pod gets as plain memory. Nothing is less than zero.
func Allocatable(capacity v1.ResourceList, r Reservation) (v1.ResourceList, error) {
	reserved, err := r.withEviction(capacity)
	if err != nil {
		return nil, err
	}
	allocatable := without(capacity, reserved)
	if memory, has := allocatable[v1.ResourceMemory]; has {
		for name, q := range capacity {
			if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
				memory = subtract(memory, q)
			}
		}
		allocatable[v1.ResourceMemory] = memory
	}
	return allocatable, nil
}

// Check returns an error that names each resource of which more is reserved than the node has. The kubelet does not
// start with such reservations either.
func Check(capacity v1.ResourceList, r Reservation) error {
	reserved, err := r.withEviction(capacity)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		have, taken := capacity[name], reserved[name]
		if taken.Cmp(have) > 0 {
			errs = append(errs, fmt.Errorf("systemReserved, kubeReserved and evictionHard keep %s of %s from pods, "+
				"and the node has %s: reserve less", taken.String(), name, have.String()))
		}
	}
	return errors.Join(errs...)
}

// Enforced returns what the cgroup of all pods is limited to: the capacity without systemReserved and kubeReserved.
// What eviction keeps free is in it, since eviction must be able to find it used, and so are huge pages, as with the
// kubelet.
func Enforced(capacity v1.ResourceList, r Reservation) (v1.ResourceList, error) {
	reserved, err := r.sum()
	if err != nil {
		return nil, err
	}
	return without(capacity, reserved), nil
}

// withEviction adds System, Kube and what eviction keeps free up.
func (r Reservation) withEviction(capacity v1.ResourceList) (v1.ResourceList, error) {
	reserved, err := r.sum()
	if err != nil || r.IgnoreEviction {
		return reserved, err
	}
	for signal, name := range evictionSignals {
		value, set := r.EvictionHard[signal]
		if !set {
			continue
		}
		q, err := threshold(value, capacity[name])
		if err != nil {
			return nil, fmt.Errorf("evictionHard[%s]: %w", signal, err)
		}
		sum := reserved[name]
		sum.Add(q)
		reserved[name] = sum
	}
	return reserved, nil
}

// sum adds System and Kube up.
func (r Reservation) sum() (v1.ResourceList, error) {
	reserved := v1.ResourceList{}
	for field, list := range map[string]map[string]string{"systemReserved": r.System, "kubeReserved": r.Kube} {
		quantities, err := Resources(field, list)
		if err != nil {
			return nil, err
		}
		for name, q := range quantities {
			sum := reserved[name]
			sum.Add(q)
			reserved[name] = sum
		}
	}
	return reserved, nil
}

func without(capacity, reserved v1.ResourceList) v1.ResourceList {
	rest := make(v1.ResourceList, len(capacity))
	for name, q := range capacity {
		rest[name] = subtract(q, reserved[name])
	}
	return rest
}

func subtract(a, b resource.Quantity) resource.Quantity {
	out := a.DeepCopy()
	out.Sub(b)
	if out.Sign() < 0 {
		out.Set(0)
	}
	return out
}

// threshold reads a quantity, or a percentage of the capacity.
func threshold(value string, capacity resource.Quantity) (resource.Quantity, error) {
	number, isPercentage := strings.CutSuffix(value, "%")
	if !isPercentage {
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return resource.Quantity{},
				fmt.Errorf("%q is neither a quantity nor a percentage, write it like 100Mi or 10%%: %w", value, err)
		}
		return q, nil
	}
	// A float32, as upstream's: both must come to the same byte.
	percent, err := strconv.ParseFloat(number, 32)
	if err != nil || !(percent >= 0 && percent <= 100) {
		return resource.Quantity{}, fmt.Errorf("%q is not a percentage from 0%% to 100%%", value)
	}
	share := float64(float32(percent) / 100)
	return *resource.NewQuantity(int64(float64(capacity.Value())*share), resource.BinarySI), nil
}
