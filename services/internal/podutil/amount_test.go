package podutil

import (
	"math"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAmountsThatAreTooLarge(t *testing.T) {
	for _, test := range []struct {
		name   v1.ResourceName
		values []string
		want   int64
	}{
		{v1.ResourceMemory, []string{"1Gi"}, 1 << 30},
		{v1.ResourceMemory, []string{"100m"}, 1},
		{v1.ResourceMemory, []string{"9223372036854775806"}, math.MaxInt64 - 1},
		{v1.ResourceMemory, []string{"1e19"}, math.MaxInt64},
		{v1.ResourceMemory, []string{"1e100"}, math.MaxInt64},
		{v1.ResourceMemory, []string{"8Ei", "8Ei"}, math.MaxInt64},
		{v1.ResourceCPU, []string{"1500m"}, 1500},
		{v1.ResourceCPU, []string{"1n"}, 1},
		{v1.ResourceCPU, []string{"9223372036854775"}, 9223372036854775000},
		{v1.ResourceCPU, []string{"1e16"}, math.MaxInt64},
		{v1.ResourceCPU, []string{"9e15", "9e15"}, math.MaxInt64},
	} {
		var sum resource.Quantity
		for _, value := range test.values {
			sum.Add(resource.MustParse(value))
		}
		if got := Amount(test.name, sum); got != test.want {
			t.Errorf("%s %v: %d, want %d", test.name, test.values, got, test.want)
		}
	}
	for _, test := range []struct{ a, b, want int64 }{
		{1, 2, 3}, {math.MaxInt64, 0, math.MaxInt64}, {math.MaxInt64, math.MaxInt64, math.MaxInt64},
	} {
		if got := AddAmounts(test.a, test.b); got != test.want {
			t.Errorf("%d and %d: %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
