package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/evictor/internal/fuse"
	"github.com/microlet/microlet/services/evictor/internal/localstorage"
	"github.com/microlet/microlet/services/evictor/internal/message"
	"github.com/microlet/microlet/services/evictor/internal/rank"
	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/podutil"
)

const (
	// reclaimTimeout bounds each way to free space of the node.
	reclaimTimeout = time.Minute
	// evictSlack is what an eviction may take beyond the time that podsync gives the containers.
	evictSlack = 15 * time.Second
	// maxPostponed is for how many rounds no pod is evicted since space is still being freed. Each takes up to two
	// reclaimTimeout.
	maxPostponed = 3
	// settling is for how long after an eviction no other pod is evicted for a disk. Volumes go after the containers have
	// ended, and containerd frees the space of a container some time after its removal. The kubelet waits for the first,
	// and for newer figures, which it has every 10 s.
	settling = 15 * time.Second
	// unmounting is for how long nothing is read after the containers of an evicted pod have stopped: podsync removes the
	// volumes in memory after them. The fuse takes an earlier eviction for a fault.
	unmounting = fuse.Pace
	// immediate is the grace period of a hard eviction, in seconds. No pod gets less.
	immediate = 1
)

// outcome is what a round of work did.
type outcome struct {
	// evicted says that a pod was evicted, pressure that a threshold was met.
	evicted, pressure bool
	// interrupted says that the round gave way to a more urgent one.
	interrupted bool
}

// round is one round of work, with all that it needs: the loop goes on meanwhile.
type round struct {
	*Options
	fuse *fuse.Fuse
	// postponed and requests: see Manager.
	postponed *int
	requests  requests

	due  []threshold.Threshold
	all  []threshold.Threshold
	seen threshold.Observations
	lay  threshold.Layout
	log  *slog.Logger
	// last is the eviction before this round. asked gets each new request before it is sent.
	last  LastEviction
	asked chan LastEviction
	// look ends when a more urgent round waits for this one. An eviction that is under way is not given up for it.
	look context.Context //nolint:containedctx // beside the context of what goes on

	layoutKnown bool
	// settled is when the space of the newest eviction is free. Of a disk, nothing is evicted before.
	settled time.Time
	// storage says that the limits of local storage are looked at first.
	storage bool
}

func (m *Manager) work(due, all []threshold.Threshold, storage bool) *round {
	r := &round{
		Options: &m.o, fuse: &m.fuse, postponed: &m.postponed, requests: m.requests, due: due, all: all,
		seen: maps.Clone(m.seen), lay: m.layout, last: m.last, asked: m.asked, layoutKnown: m.layoutKnown,
		storage: storage, log: m.o.Log,
	}
	if at := m.disks.evictedAt; !at.IsZero() {
		r.settled = at.Add(settling)
	}
	if len(due) > 0 {
		r.log = m.o.Log.With("signal", due[0].Signal)
	}
	return r
}

// urgent says that a round is for memory or process IDs, of which the disk's must not cost any time.
func urgent(due []threshold.Threshold) bool {
	return len(due) > 0 && due[0].Signal.Condition() != v1.NodeDiskPressure
}

// do evicts a pod that exceeds its limits of local storage, or else frees what is short. One pod is evicted at most.
func (r *round) do(ctx context.Context) (out outcome) {
	r.requests.forget(r.Pods.Active)
	out.pressure = len(r.due) > 0
	defer func() { out.interrupted = r.look.Err() != nil && ctx.Err() == nil }()
	if r.storage {
		out.evicted = r.exceeds(ctx)
	}
	if !out.evicted && len(r.due) > 0 {
		out.evicted = r.relieve(ctx)
	}
	return out
}

// relieve frees space of the node, or else evicts one pod and waits until it is gone. It says whether it evicted one.
func (r *round) relieve(ctx context.Context) bool {
	first := r.due[0]
	starved := first.Signal.Resource()
	r.log.Info("a threshold is met", "resource", starved, "available", r.seen[first.Signal].Available,
		"capacity", r.seen[first.Signal].Capacity)
	r.Node.ThresholdMet(starved)
	if r.reclaim(first.Signal) {
		if r.look.Err() != nil {
			return false
		}
		r.log.Info("the node has enough again without an eviction", "resource", starved)
		return false
	}
	if first.Signal.Condition() == v1.NodeDiskPressure && time.Now().Before(r.settled) {
		r.log.Info("no pod is evicted yet: the space of the last one is still being freed")
		return false
	}
	candidates, err := r.candidates(first.Signal)
	if err != nil {
		r.log.Error("no pod is evicted", logkey.Err, err)
		return false
	}
	for _, c := range candidates {
		// One that does not end shields no other, but is asked for again first: podsync may have forgotten it.
		if podutil.IsCritical(c.Pod) || r.requests.recent(c.UID) {
			continue
		}
		if err := r.stillMet(first); err != nil {
			r.log.Info("no pod is evicted", logkey.Reason, err.Error())
			return false
		}
		if !r.mayEvict() {
			return false
		}
		if r.evict(ctx, string(first.Signal), r.grace(first, c.Pod), c) {
			r.Metrics.statsAge.WithLabelValues(string(first.Signal)).Observe(
				max(time.Since(r.seen[first.Signal].Time), 0).Seconds())
			return true
		}
	}
	if ctx.Err() == nil {
		r.log.Error("no pod can be evicted", "active", len(candidates))
	}
	return false
}

// mayEvict asks the fuse.
func (r *round) mayEvict() bool {
	err := r.fuse.Check(time.Now())
	if err != nil {
		r.Metrics.stopped.Inc()
		r.log.Error("no pod is evicted", logkey.Err, err)
	}
	return err == nil
}

// candidate is a pod with the words about its eviction.
type candidate struct {
	*v1.Pod
	Message     string
	Annotations map[string]string
	// Disruption and Exceeded: see Eviction.
	Disruption bool
	Exceeded   *localstorage.Excess
}

// candidates are the pods that have not ended, the first to evict first.
func (r *round) candidates(s signal.Signal) ([]candidate, error) {
	active := r.Pods.Active()
	if len(active) == 0 {
		return nil, errors.New("no pod is active")
	}
	disk := s.Condition() == v1.NodeDiskPressure
	figures, err := r.Usage.Of(r.look, active, disk)
	if figures == nil {
		return nil, err
	}
	if err != nil {
		r.log.Warn("what pods use is not known of all", logkey.Err, err)
	}
	list := make([]*v1.Pod, len(active))
	for i := range active {
		list[i] = active[i].Pod
	}
	rank.By(s, r.lay, list, figuresOf(figures))
	all := make([]candidate, len(list))
	for i, p := range list {
		text, annotations := message.Of(s.Resource(), p, figures[p.UID], r.due, r.seen)
		all[i] = candidate{Pod: p, Message: text, Annotations: annotations, Disruption: true}
	}
	return all, nil
}

// stillMet reads memory and process IDs once more: a single reading that was wrong must cost no pod.
func (r *round) stillMet(t threshold.Threshold) error {
	if t.Signal.Condition() == v1.NodeDiskPressure {
		return nil // it was read again after space was freed
	}
	again := r.Reader.Quick()
	o, ok := again.Seen[t.Signal]
	if !ok {
		return fmt.Errorf("the signal cannot be read again: %w", again.Failed[t.Signal])
	}
	if !t.Met(o, true) {
		return errors.New("a second reading does not confirm the first")
	}
	return nil
}

// evict has a pod evicted for a signal, and returns false if podsync refused it, or if ctx had ended before podsync was
// asked. After that it waits for the end of the pod.
func (r *round) evict(ctx context.Context, because string, grace int64, c candidate) bool {
	log := r.log.With(logkey.Pod, c.Namespace+"/"+c.Name, logkey.PodUID, c.UID)
	call, cancel := context.WithTimeout(ctx, callTimeout(grace))
	defer cancel()
	if call.Err() != nil {
		return false
	}
	asked := time.Now()
	r.announce(LastEviction{string(c.UID), asked})
	log.Info("the pod is evicted", logkey.Message, c.Message)
	stopped, err := r.Node.Evict(call, Eviction{
		Pod: c.Pod, Message: c.Message, GraceSeconds: grace, Annotations: c.Annotations, Disruption: c.Disruption,
		Exceeded: c.Exceeded,
	})
	if errors.Is(err, ErrRefused) {
		log.Warn("podsync does not evict the pod", logkey.Err, err)
		r.announce(r.last)
		return false
	}
	r.fuse.Evicted(asked)
	r.Metrics.evictions.WithLabelValues(because).Inc()
	if err != nil {
		log.Error("the pod has not ended in time", logkey.Err, err)
	}
	r.requests[c.UID] = asked // until the bus shows its end
	if !r.awaitEnd(ctx, c.UID, stopped) && ctx.Err() == nil {
		log.Warn("the evicted pod still runs")
	}
	return true
}

// awaitEnd waits until nothing of an evicted pod runs, and reports whether that is so. If podsync has answered that its
// containers have stopped, it only lets podsync remove the volumes in memory.
func (r *round) awaitEnd(ctx context.Context, uid types.UID, stopped bool) bool {
	if !stopped {
		return r.Pods.Await(ctx, string(uid))
	}
	_ = pause.For(ctx, unmounting) // the caller asks ctx
	return true
}

// callTimeout is how long podsync may take for an eviction.
func callTimeout(graceSeconds int64) time.Duration {
	grace := time.Duration(graceSeconds) * time.Second
	return grace + grace/2 + evictSlack
}

// announce has the loop report an eviction, in place of one that it has not reported yet.
func (r *round) announce(last LastEviction) {
	select {
	case <-r.asked:
	default:
	}
	r.asked <- last
}

// grace is what the containers of a pod get to end, in seconds. As with the kubelet, any evictionMaxPodGracePeriod is
// taken, and a pod gets a second if it is less.
func (r *round) grace(t threshold.Threshold, p *v1.Pod) int64 {
	if t.Hard() {
		return immediate
	}
	grace := r.MaxPodGrace
	if own := p.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = min(grace, *own)
	}
	return max(grace, immediate)
}

// reclaim frees space of the node, if the signal is of a disk, and says whether no pod is
// evicted: every threshold is over then, or more can be freed.
func (r *round) reclaim(s signal.Signal) bool {
	containers, images := reclaims(s, r.lay)
	if !containers && !images {
		return false
	}
	unfinished := false
	free := func(what string, wanted bool, ask func(context.Context) error) {
		if !wanted {
			return
		}
		call, cancel := context.WithTimeout(r.look, reclaimTimeout)
		defer cancel()
		if err := ask(call); err != nil {
			r.log.Warn("not all that is unused is removed", "what", what, logkey.Err, err)
			unfinished = unfinished || errors.Is(err, ErrUnfinished)
		}
	}
	free("dead containers", containers, r.Node.RemoveDeadContainers)
	free("unused images", images, r.Node.DeleteUnusedImages)
	again := r.Reader.All(r.look)
	if _, ok := again.Seen[s]; !ok || r.look.Err() != nil {
		return true // nothing is evicted for a signal that cannot be read
	}
	// As with the kubelet, the words about an eviction have what was seen before.
	if len(threshold.Met(r.all, again.Seen, true)) == 0 {
		*r.postponed = 0
		return true
	}
	if !unfinished || *r.postponed >= maxPostponed {
		*r.postponed = 0
		return false
	}
	*r.postponed++
	r.log.Info("no pod is evicted yet: space is still being freed", "round", *r.postponed)
	return true
}

// reclaims says what is removed before pods are evicted for a signal.
func reclaims(s signal.Signal, l threshold.Layout) (containers, images bool) {
	if s.Condition() != v1.NodeDiskPressure {
		return false, false
	}
	image := s == signal.ImageFsAvailable || s == signal.ImageFsInodesFree
	node := s == signal.NodeFsAvailable || s == signal.NodeFsInodesFree
	switch {
	case l.ImageFs && l.SplitContainerFs:
		return !image, image
	case l.ImageFs:
		return !node, !node
	}
	return true, true
}
