package store

import (
	"bytes"
	"encoding/json"
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

type resources map[v1.ResourceName]quantity

func (r resources) list() v1.ResourceList {
	if r == nil {
		return nil
	}
	l := make(v1.ResourceList, len(r))
	for name, q := range r {
		l[name] = resource.Quantity(q)
	}
	return l
}

// parseResources reads what a v1.ResourceRequirements is in JSON; nil if there is none.
func parseResources(text json.RawMessage) (*v1.ResourceRequirements, error) {
	var r *struct {
		Limits   resources          `json:"limits"`
		Requests resources          `json:"requests"`
		Claims   []v1.ResourceClaim `json:"claims"`
	}
	if err := json.Unmarshal(or(text, "null"), &r); err != nil || r == nil {
		return nil, err
	}
	return &v1.ResourceRequirements{Limits: r.Limits.list(), Requests: r.Requests.list(), Claims: r.Claims}, nil
}

// or is a JSON text, or another one if there is none.
func or(text json.RawMessage, other string) json.RawMessage {
	if text == nil {
		return json.RawMessage(other)
	}
	return text
}
