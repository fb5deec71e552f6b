package manager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/absence"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/poddeletion"
)

// errNoPod is an answer that is not the API server's: client-go takes any object of JSON for a pod.
var errNoPod = errors.New("the answer is no pod")

// deliver patches or deletes one pod. Only one worker has a pod at a time, so what
// is reported of it arrives in order.
func (m *Manager) deliver(ctx context.Context, uid types.UID) {
	m.mu.Lock()
	e := m.entries[uid]
	if e == nil {
		m.mu.Unlock()
		return
	}
	p, want, version := e.pod, e.want, e.version
	ctx = e.in.In(ctx)
	write := version != e.delivered || e.force
	m.mu.Unlock()

	var err error
	if write {
		err = m.write(ctx, e, p, want, version)
	}
	if err == nil {
		err = m.remove(ctx, e)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	e.inFlight = false
	if m.entries[uid] != e {
		return // forgotten meanwhile
	}
	if err != nil {
		m.failed(ctx, e, err)
		return
	}
	e.failures = 0
	if m.outage && write {
		m.recovered()
	}
	m.enqueue(uid, e) // a newer status came meanwhile, or the deletion can follow
	m.reconcile(e)
}

// write patches the status, if there is anything to patch.
func (m *Manager) write(ctx context.Context, e *entry, p *v1.Pod, want *v1.PodStatus, version uint64) error {
	patch, err := statusPatch(p.UID, &p.Status, merged(p, want))
	if err != nil {
		return err
	}
	after := p
	if patch != nil {
		call, cancel := context.WithTimeout(ctx, m.timeout)
		defer cancel()
		m.metrics.patches.Inc()
		after, err = m.client.PatchPodStatus(call, p.Namespace, p.Name, patch)
		switch {
		case absence.Pod(err, p.Name):
			return m.gone(e)
		case apierrors.IsConflict(err) || apierrors.IsInvalid(err):
			return m.refresh(ctx, e, p, err)
		case err != nil:
			return fmt.Errorf("patch pod status: %w", err)
		case after.UID != p.UID:
			return fmt.Errorf("patch pod status: %w", errNoPod)
		}
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if !older(after, e.pod) {
		e.pod = after
	}
	e.delivered, e.force = version, false
	if e.version == version {
		// A write that changes nothing of ours shows what the server drops.
		if left := normalized(after, &after.Status); same(left, normalized(p, &p.Status)) {
			e.refused = left
		}
	}
	if patch != nil {
		m.metrics.duration.Observe(time.Since(e.since).Seconds())
	}
	if e.version != version {
		e.since = time.Now()
	}
	return nil
}

// remove deletes a pod after its final status has arrived.
func (m *Manager) remove(ctx context.Context, e *entry) error {
	m.mu.Lock()
	p, deletable := e.pod, e.deletable()
	m.mu.Unlock()
	if !deletable {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	if err := poddeletion.Delete(call, m.client, p.Namespace, p.Name, p.UID); err != nil {
		return fmt.Errorf("delete pod: %w", err)
	}
	m.log.Info("pod terminated and deleted", logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	e.deleted = true
	return nil
}

// gone is for a pod that the API no longer has: nothing more is reported of it, unless the watch brings it again.
func (m *Manager) gone(e *entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.missing = true
	e.delivered = e.version
	return nil
}

// refresh looks why the apiserver refused a patch: the name may belong to another pod by now,
// or the status that the patch was made against is not the API's.
func (m *Manager) refresh(ctx context.Context, e *entry, p *v1.Pod, refused error) error {
	call, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	now, err := m.client.GetPod(call, p.Namespace, p.Name)
	switch {
	case absence.Pod(err, p.Name):
		return m.gone(e)
	case err != nil:
		return fmt.Errorf("look at the pod whose status patch was refused (%w): %w", refused, err)
	case now.UID == "":
		return fmt.Errorf("look at the pod whose status patch was refused (%w): %w", refused, errNoPod)
	case now.UID != p.UID:
		return m.gone(e)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !older(now, e.pod) {
		e.pod = now
	}
	return fmt.Errorf("patch pod status: %w", refused)
}

// failed plans the next attempt: ever later up to lastRetry, and never given up.
func (m *Manager) failed(ctx context.Context, e *entry, err error) {
	if ctx.Err() != nil {
		return
	}
	m.metrics.failures.WithLabelValues(string(apierrors.ReasonForError(err))).Inc()
	delay := lastRetry
	if e.failures < 6 {
		delay = min(firstRetry<<e.failures, lastRetry)
	}
	// Up to a fifth less, so that pods that failed together do not come back together.
	delay -= time.Duration(rand.Int64N(int64(delay / 5)))
	e.failures++
	m.outage = m.outage || apierrors.ReasonForError(err) == "" || apierrors.IsServerTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
	m.log.Warn("status patch failed, retrying", logkey.Pod, e.pod.Namespace+"/"+e.pod.Name, logkey.PodUID, e.pod.UID,
		logkey.Attempt, e.failures, logkey.Delay, delay.Round(time.Millisecond), logkey.Err, err)
	m.wakeAt(e, time.Now().Add(delay))
}

// recovered lets all that waits for the apiserver go now that it answers; the number of
// workers keeps that from becoming a burst.
func (m *Manager) recovered() {
	m.outage = false
	now := time.Now()
	for _, e := range m.entries {
		if e.waits() {
			m.wakeAt(e, now)
		}
	}
}
