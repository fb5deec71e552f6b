// Package pods answers evictor's questions about the node's pods.
//
// While the bus is down, the last values count.
package pods

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podutil"
)

// reasonEvicted is that of a pod that podsync evicts.
const reasonEvicted = "Evicted"

// Source has the pods; see nodepods.View.
type Source interface {
	Get(uid string) (*nodepods.Pod, bool)
	All() map[string]*nodepods.Pod
	Synced() bool
}

// Pods are the node's. They are safe for concurrent use.
type Pods struct {
	source Source
	known  atomic.Bool
}

// New returns the pods of a source.
func New(s Source) *Pods { return &Pods{source: s} }

// Known reports whether all pods have been seen since the start. After that, the last values count while the bus is
// away.
func (p *Pods) Known() bool {
	if !p.known.Load() && p.source.Synced() {
		p.known.Store(true)
	}
	return p.known.Load()
}

// Active returns the pods that have not ended, the oldest first, as the kubelet's GetActivePods does: those of which
// something runs, and those that wait to be started for the first time or again. A pod that cannot be read is left out,
// so it is not evicted.
func (p *Pods) Active() []*nodepods.Pod {
	var active []*nodepods.Pod
	for _, one := range p.source.All() {
		if one.Err == nil && (runs(one) || !one.Terminating && !hasEnded(one)) {
			active = append(active, one)
		}
	}
	slices.SortFunc(active, func(a, b *nodepods.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return active
}

// Running reports whether something of the pod runs. A pod that is not there does not run, once all are known.
func (p *Pods) Running(uid string) bool {
	one, ok := p.source.Get(uid)
	return !p.Known() || ok && runs(one)
}

// Evicting returns a pod that podsync is evicting, and of which something still runs; empty if there is none.
func (p *Pods) Evicting() string {
	for uid, one := range p.source.All() {
		if IsEvicted(one) {
			return uid
		}
	}
	return ""
}

// IsEvicted reports whether podsync is evicting the pod, and something of it still runs.
func IsEvicted(p *nodepods.Pod) bool {
	return p.Reported && p.Terminating && p.Status.Reason == reasonEvicted && runs(p)
}

// hasEnded reports whether nothing of the pod is started again, or podsync has not reported its status.
func hasEnded(p *nodepods.Pod) bool { return !p.Reported || podutil.IsTerminal(p.Status.Phase) }

func runs(p *nodepods.Pod) bool {
	return slices.ContainsFunc(p.Containers, func(c nodepods.Container) bool {
		return c.IsRunning() || c.State == nodepods.Unknown
	})
}

// How long Await waits for a pod, and how often it looks: as long as the kubelet does.
const (
	cleanupTimeout = 30 * time.Second
	cleanupPoll    = time.Second
)

// Await returns true when nothing of the pod runs, or false if that takes longer than 30 s or ctx ends.
func (p *Pods) Await(ctx context.Context, uid string) bool {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	tick := time.NewTicker(cleanupPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			if !p.Running(uid) {
				return true
			}
		}
	}
}
