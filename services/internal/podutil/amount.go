package podutil

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Amount returns a quantity in thousandths of a CPU, else in whole units. A quantity that no int64 can hold, which the
// API takes, is the largest int64: Quantity's own methods make 0, or any other number, of it.
func Amount(name v1.ResourceName, q resource.Quantity) int64 {
	unit := resource.Scale(0)
	if name == v1.ResourceCPU {
		unit = resource.Milli
	}
	if q.Cmp(*resource.NewScaledQuantity(math.MaxInt64, unit)) >= 0 {
		return math.MaxInt64
	}
	return q.ScaledValue(unit)
}

// AddAmounts returns the sum of two amounts that are not negative, which is at most the largest int64.
func AddAmounts(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
