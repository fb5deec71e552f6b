package store

import (
	"bytes"
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// maxQuantity is far more than a quantity has that a kubelet writes.
	maxQuantity = 128
	// maxExponent bounds what follows the e of a quantity. To read or compare 1e-2147483647 takes all memory and more than
	// the life of a node.
	maxExponent = 99
)

// quantity is one that is read without trust.
type quantity resource.Quantity

// UnmarshalJSON refuses what takes long to read or to calculate with.
func (q *quantity) UnmarshalJSON(text []byte) error {
	if len(text) > maxQuantity {
		return fmt.Errorf("quantity %.20q has %d bytes, at most %d are possible", text, len(text), maxQuantity)
	}
	bare := bytes.TrimSpace(bytes.Trim(text, `"`))
	if i := bytes.LastIndexAny(bare, "eE"); i >= 0 && i < len(bare)-1 {
		digits := bytes.TrimLeft(bare[i+1:], "+-")
		exponent, err := strconv.Atoi(string(digits))
		isNumber := err == nil || len(bytes.Trim(digits, "0123456789")) == 0 // one may be too long for Atoi
		if isNumber && (err != nil || exponent > maxExponent) {
			return fmt.Errorf("quantity %q has the exponent %s, possible are -%d to %d", bare, bare[i+1:], maxExponent,
				maxExponent)
		}
	}
	if err := (*resource.Quantity)(q).UnmarshalJSON(text); err != nil {
		return fmt.Errorf("quantity %q: %w", bare, err)
	}
	return nil
}

// requirements are a v1.ResourceRequirements that is read without trust.
type requirements struct {
	Limits   map[v1.ResourceName]quantity `json:"limits"`
	Requests map[v1.ResourceName]quantity `json:"requests"`
	Claims   []v1.ResourceClaim           `json:"claims"`
}

func (r requirements) granted() v1.ResourceRequirements {
	return v1.ResourceRequirements{Limits: list(r.Limits), Requests: list(r.Requests), Claims: r.Claims}
}

func list(quantities map[v1.ResourceName]quantity) v1.ResourceList {
	if quantities == nil {
		return nil
	}
	l := make(v1.ResourceList, len(quantities))
	for name, q := range quantities {
		l[name] = resource.Quantity(q)
	}
	return l
}

func granted(containers map[string]requirements) map[string]v1.ResourceRequirements {
	all := make(map[string]v1.ResourceRequirements, len(containers))
	for name, r := range containers {
		all[name] = r.granted()
	}
	return all
}
