package manager

import (
	"context"
	"time"

	"github.com/microlet/microlet/services/evictor/internal/localstorage"
	"github.com/microlet/microlet/services/evictor/internal/pods"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
)

// LocalStorage is how pods are held to their limits of local storage.
type LocalStorage struct {
	// Enforced is localStorageCapacityIsolation.
	Enforced bool
	// MemoryIsBounded is the feature gate InPlacePodVerticalScalingMemoryBackedVolumes; see localstorage.Rules.
	MemoryIsBounded bool
	// MaxAge is how old a figure may be.
	MaxAge time.Duration
}

// exceeds evicts one pod that takes more of the disk than it may, and waits until it is gone. It says whether there was
// one.
func (r *round) exceeds(ctx context.Context) bool {
	var limited []pods.Pod
	for _, p := range r.Pods.Active() {
		if localstorage.Limited(p.Pod) && !podutil.IsCritical(p.Pod) {
			limited = append(limited, p)
		}
	}
	if len(limited) == 0 {
		return false
	}
	figures, err := r.Usage.Of(r.look, limited, true)
	if err != nil {
		// The readings are counted by stats, and its being down is told by its own reports.
		r.log.Debug("limits of local storage are not all looked at", logkey.Err, err)
	}
	rules := localstorage.Rules{
		// Layers count only if they are known to be on the disk of the pods.
		DedicatedImageFs: r.lay.ImageFs || !r.layoutKnown,
		MemoryIsBounded:  r.LocalStorage.MemoryIsBounded,
		Oldest:           time.Now().Add(-r.LocalStorage.MaxAge),
	}
	for _, p := range limited {
		f := figures[p.UID]
		if f == nil {
			continue
		}
		excess, found := rules.Check(p.Pod, f)
		if !found {
			continue
		}
		if !r.mayEvict() {
			return false
		}
		c := candidate{Pod: p.Pod, Message: excess.Message}
		if r.evict(ctx, excess.Signal, localstorage.GracePeriodSeconds, c) {
			return true
		}
	}
	return false
}
