// Package threshold reads eviction thresholds from the kubelet's configuration, and says which are met.
package threshold

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/evictor/internal/signal"
)

// Value is an amount, or a share of the capacity.
type Value struct {
	// Quantity is the amount; nil for a share.
	Quantity *resource.Quantity
	// Percentage is the share, from 0 to 1. It is a float32 as with the kubelet, so that both come to the same byte.
	Percentage float32
}

// Of is the amount for a capacity.
func (v Value) Of(capacity int64) resource.Quantity {
	if v.Quantity != nil {
		return v.Quantity.DeepCopy()
	}
	return *resource.NewQuantity(int64(float64(capacity)*float64(v.Percentage)), resource.BinarySI)
}

// equal compares what is configured, not the spelling.
func (v Value) equal(o Value) bool {
	if v.Quantity == nil || o.Quantity == nil {
		return v.Quantity == nil && o.Quantity == nil && v.Percentage == o.Percentage
	}
	return v.Quantity.Cmp(*o.Quantity) == 0
}

// zero says that the value is not configured.
func (v Value) zero() bool { return v.Quantity == nil && v.Percentage == 0 }

// Threshold is met while the signal is below Value.
type Threshold struct {
	Signal signal.Signal
	Value  Value
	// Grace is how long the threshold must be met before pods are evicted; 0 for a hard one.
	Grace time.Duration
	// MinReclaim is what must be free beyond Value before a met threshold is over.
	MinReclaim Value
}

// Impossible says that a node of this capacity is below the threshold whatever runs on it.
func (t Threshold) Impossible(capacity int64) bool {
	quantity := t.Value.Of(capacity)
	return quantity.CmpInt64(capacity) > 0
}

// Hard says that pods are evicted at once.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// Same says that both are one threshold of the configuration.
func (t Threshold) Same(o Threshold) bool {
	return t.Signal == o.Signal && t.Grace == o.Grace && t.Value.equal(o.Value)
}

// Observation is what was read of a signal.
type Observation struct {
	Available, Capacity int64
	// Time of the reading.
	Time time.Time
}

// Met says whether the observation is below the threshold; reclaim adds MinReclaim to it.
func (t Threshold) Met(o Observation, reclaim bool) bool {
	quantity := t.Value.Of(o.Capacity)
	if reclaim && !t.MinReclaim.zero() {
		quantity.Add(t.MinReclaim.Of(o.Capacity))
	}
	return quantity.CmpInt64(o.Available) > 0
}

// Observations are the signals that could be read.
type Observations map[signal.Signal]Observation

// Met returns the thresholds that are met, in their order. A threshold is not met if its signal could not be read.
func Met(all []Threshold, seen Observations, reclaim bool) []Threshold {
	var met []Threshold
	for _, t := range all {
		if o, ok := seen[t.Signal]; ok && t.Met(o, reclaim) {
			met = append(met, t)
		}
	}
	return met
}
