// Package pods knows the node's pods as podsync reports them on the bus.
//
// While the bus is down, the last values count.
package pods

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
)

// reasonEvicted is that of a pod that podsync evicts.
const reasonEvicted = "Evicted"

// Pod is a pod on this node.
type Pod struct {
	*v1.Pod
	// Containers are IDs by name, of those that run.
	Containers map[string]string
	// Evicting says that podsync is evicting it, and that something of it still runs.
	Evicting bool
}

// source is a bucket as a view of the bus shows it.
type source[M any] interface {
	All() map[string]M
	Synced() bool
}

// Pods are the node's. They are safe for concurrent use.
type Pods struct {
	pods     source[*podsyncv1.Pod]
	statuses source[*podsyncv1.PodStatus]
	log      *slog.Logger

	known atomic.Bool
}

// Watch returns the pods as the bus tells them, once the client runs.
func Watch(c *bus.Client, log *slog.Logger) *Pods {
	return &Pods{
		pods:     bus.Watch[podsyncv1.Pod](c, subject.Pods, ">", nil),
		statuses: bus.Watch[podsyncv1.PodStatus](c, subject.PodStatus, ">", nil),
		log:      log,
	}
}

// Known reports whether all pods have been seen since the start. After that, the last values count while the bus is
// away.
func (p *Pods) Known() bool {
	if !p.known.Load() && p.pods.Synced() && p.statuses.Synced() {
		p.known.Store(true)
	}
	return p.known.Load()
}

// Active returns the pods that have not ended, the oldest first, as the kubelet's GetActivePods does: those of which
// something runs, and those that wait to be started for the first time or again. Their status is podsync's newest.
func (p *Pods) Active() []Pod {
	var active []Pod
	statuses := p.statuses.All()
	for uid, message := range p.pods.All() {
		if !running(statuses[uid]) && (message.GetTerminating() || hasEnded(statuses[uid])) {
			continue
		}
		one, err := decode(message, statuses[uid])
		if err != nil {
			p.log.Error("a pod of the bus cannot be read; it is not evicted", logkey.PodUID, uid, logkey.Err, err)
			continue
		}
		active = append(active, one)
	}
	slices.SortFunc(active, func(a, b Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return active
}

func decode(message *podsyncv1.Pod, status *podsyncv1.PodStatus) (Pod, error) {
	one := Pod{Pod: &v1.Pod{}, Containers: map[string]string{}, Evicting: evicting(message, status)}
	if err := one.Unmarshal(message.GetPod()); err != nil {
		return Pod{}, fmt.Errorf("decode the pod: %w", err)
	}
	for _, c := range status.GetContainers() {
		if c.GetState() == podsyncv1.ContainerState_CONTAINER_STATE_RUNNING {
			one.Containers[c.GetName()] = c.GetId()
		}
	}
	return one, nil
}

// Running says whether something of the pod runs. A pod that is not there does not, once all are known.
func (p *Pods) Running(uid string) bool {
	return !p.Known() || p.pods.All()[uid] != nil && running(p.statuses.All()[uid])
}

// Evicting returns a pod that podsync is evicting, and of which something still runs; empty if there is none.
func (p *Pods) Evicting() string {
	statuses := p.statuses.All()
	for uid, message := range p.pods.All() {
		if evicting(message, statuses[uid]) {
			return uid
		}
	}
	return ""
}

func evicting(message *podsyncv1.Pod, status *podsyncv1.PodStatus) bool {
	if !message.GetTerminating() || !running(status) {
		return false
	}
	var s v1.PodStatus
	return s.Unmarshal(status.GetStatus()) == nil && s.Reason == reasonEvicted
}

// hasEnded says that nothing of the pod is started again, or that podsync has said nothing of it.
func hasEnded(status *podsyncv1.PodStatus) bool {
	var s v1.PodStatus
	if status == nil || s.Unmarshal(status.GetStatus()) != nil {
		return true
	}
	return s.Phase == v1.PodSucceeded || s.Phase == v1.PodFailed
}

func running(status *podsyncv1.PodStatus) bool {
	return slices.ContainsFunc(status.GetContainers(), func(c *podsyncv1.Container) bool {
		return c.GetState() == podsyncv1.ContainerState_CONTAINER_STATE_RUNNING ||
			c.GetState() == podsyncv1.ContainerState_CONTAINER_STATE_UNKNOWN
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
