package manager

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/localstorage"
	"github.com/microlet/microlet/services/evictor/internal/pods"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
)

// LocalStorage is how pods are held to their limits of local storage.
type LocalStorage struct {
	// Enforced is localStorageCapacityIsolation.
	Enforced bool
	// MaxAge is how old a figure may be. One that is late has the time of stats' answer; see package usage.
	MaxAge time.Duration
}

// Measure measures what a pod takes of the disk; see measurement.Measurer. Figures with an error lack a part.
type Measure interface {
	Of(ctx context.Context, p *v1.Pod) (*statsapi.PodStats, error)
}

// violator is a pod that takes more of the disk than it may.
type violator struct {
	*nodepods.Pod
	localstorage.Excess
}

// exceeds evicts one pod that takes more of the disk than it may, and waits until it is gone. It says whether there was
// one.
//
// A pod that does not end although its eviction was asked for comes last: it shields no other, as with the kubelet,
// which evicts every such pod each time it looks.
func (r *round) exceeds(ctx context.Context) bool {
	var old []violator
	for _, v := range r.violators() {
		if r.requests.has(v.Pod) {
			old = append(old, v)
			continue
		}
		if !r.mayEvict() {
			return false
		}
		excess, exceeds := r.confirm(v)
		if !exceeds {
			continue
		}
		c := candidate{Pod: v.Pod.Pod, Message: excess.Message, Exceeded: &excess}
		if r.evict(ctx, excess.Signal, localstorage.GracePeriodSeconds, c) {
			return true
		}
	}
	return r.repeat(old)
}

// confirm measures the pod, of which so far only stats has said that it exceeds a limit.
func (r *round) confirm(v violator) (localstorage.Excess, bool) {
	log := r.log.With(logkey.Pod, v.Namespace+"/"+v.Name, logkey.PodUID, v.UID)
	figures, err := r.Measure.Of(r.look, v.Pod.Pod)
	var excess localstorage.Excess
	found := false
	if figures != nil {
		excess, found = r.storageRules(time.Time{}).Check(v.Pod.Pod, figures)
	}
	switch {
	case found:
	case err != nil:
		r.Metrics.confirmations.WithLabelValues(unmeasured).Inc()
		log.Info("a pod that exceeds a limit of local storage is not evicted before it is measured", logkey.Err, err)
		return localstorage.Excess{}, false
	default:
		r.Metrics.confirmations.WithLabelValues(contradicted).Inc()
		log.Warn("a pod is not evicted, since it does not exceed its limits of local storage although stats says so",
			logkey.Message, v.Message)
		return localstorage.Excess{}, false
	}
	r.Metrics.confirmations.WithLabelValues(confirmed).Inc()
	return excess, true
}

func (r *round) storageRules(oldest time.Time) localstorage.Rules {
	return localstorage.Rules{
		// Layers count only if they are known to be on the disk of the pods.
		DedicatedImageFs: r.lay.ImageFs || !r.layoutKnown,
		Oldest:           oldest,
	}
}

// violators are the oldest first.
func (r *round) violators() (all []violator) {
	var limited []*nodepods.Pod
	for _, p := range r.Pods.Active() {
		if localstorage.Limited(p.Pod) && !podutil.IsCritical(p.Pod) {
			limited = append(limited, p)
		}
	}
	if len(limited) == 0 {
		return nil
	}
	figures, err := r.Usage.Of(r.look, limited, true)
	if err != nil {
		// stats counts the readings, and its own reports show when it is down.
		r.log.Debug("limits of local storage are not all looked at", logkey.Err, err)
	}
	rules := r.storageRules(time.Now().Add(-r.LocalStorage.MaxAge))
	for _, p := range limited {
		f := figures[p.UID]
		if f == nil {
			continue
		}
		if excess, found := rules.Check(p.Pod, f); found {
			all = append(all, violator{p, excess})
		}
	}
	return all
}

// repeat requests the eviction of one pod once more, the one with the oldest last request, and reports whether the pod
// has ended by that. A podsync that has restarted knows nothing of a request before. It is the same eviction, so that
// it is not counted again, and it gives way to a more urgent round.
func (r *round) repeat(old []violator) bool {
	if len(old) == 0 {
		return false
	}
	v := slices.MinFunc(old, func(a, b violator) int { return r.requests[a.UID].Compare(r.requests[b.UID]) })
	now := time.Now()
	if r.requests.recent(v.UID) {
		return false
	}
	r.requests[v.UID] = now
	excess, exceeds := r.confirm(v)
	if !exceeds {
		return false
	}
	log := r.log.With(logkey.Pod, v.Namespace+"/"+v.Name, logkey.PodUID, v.UID)
	log.Info("the eviction of a pod that still runs is asked for again", logkey.Message, excess.Message)
	call, cancel := context.WithTimeout(r.look, callTimeout(localstorage.GracePeriodSeconds))
	defer cancel()
	stopped, err := r.Node.Evict(call, Eviction{
		Pod: v.Pod.Pod, Message: excess.Message, GraceSeconds: localstorage.GracePeriodSeconds, Exceeded: &excess,
	})
	if !stopped {
		log.Warn("the pod has not ended", logkey.Err, err)
		return false
	}
	return r.awaitEnd(r.look, v.UID, stopped)
}

// repeatAfter is how long an eviction is left alone that has not ended its pod.
const repeatAfter = time.Minute

// requests are the times of the last eviction requests, by the UIDs of pods that have not ended according to the bus.
type requests map[types.UID]time.Time

// has says that the pod is being evicted, for this evictor or for one before it.
func (r requests) has(p *nodepods.Pod) bool {
	_, asked := r[p.UID]
	return asked || pods.IsEvicted(p)
}

// recent says that the pod's eviction is to be left alone for now.
func (r requests) recent(uid types.UID) bool { return time.Since(r[uid]) < repeatAfter }

// forget drops the pods that have ended.
func (r requests) forget(active func() []*nodepods.Pod) {
	if len(r) == 0 {
		return
	}
	all := active()
	maps.DeleteFunc(r, func(uid types.UID, _ time.Time) bool {
		return !slices.ContainsFunc(all, func(p *nodepods.Pod) bool { return p.UID == uid })
	})
}
