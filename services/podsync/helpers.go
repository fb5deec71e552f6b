package podsync

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// helperPods is admission that records the helper pods that it admits, before anything of them starts, for as long as
// anything of them may run: every service reads there who may act as which role.
type helperPods struct {
	worker.Admission
	role    func(p *v1.Pod) role.Role
	records peer.Helpers
	log     *slog.Logger

	mu sync.Mutex // between the sweep and a pod that comes
}

var _ worker.Admission = (*helperPods)(nil)

// Admit implements worker.Admission. A helper that cannot be recorded is not admitted yet.
func (h *helperPods) Admit(ctx context.Context, p *v1.Pod, source podsyncv1.PodSource, running bool) (admission.Verdict, error) {
	verdict, err := h.Admission.Admit(ctx, p, source, running)
	if err != nil || !verdict.Admitted() {
		return verdict, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.role(p)
	if r == "" { // nor is it what it was before a restart
		err = h.records.Forget(string(p.UID))
	} else {
		err = h.records.Record(string(p.UID), r)
	}
	if err != nil {
		return admission.Verdict{}, err
	}
	if r != "" {
		h.log.Info("pod is a helper", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "role", r)
	}
	return verdict, nil
}

// Ended implements worker.Admission.
func (h *helperPods) Ended(uid types.UID) {
	h.forget(uid)
	h.Admission.Ended(uid)
}

// Forget implements worker.Admission.
func (h *helperPods) Forget(uid types.UID) {
	h.forget(uid)
	h.Admission.Forget(uid)
}

func (h *helperPods) forget(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.records.Forget(string(uid)); err != nil {
		h.log.Error("a pod that has ended is still recorded as a helper", "uid", uid, "err", err)
	}
}

// sweep removes the records of pods that are not known.
func (h *helperPods) sweep(known func(types.UID) bool) error {
	uids, err := h.records.List()
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, uid := range uids {
		if known(types.UID(uid)) {
			continue
		}
		if err := h.records.Forget(uid); err != nil {
			return err
		}
	}
	return nil
}

// sweepHelpers removes, once every source was heard, what an earlier podsync recorded of pods that are gone.
func (n *node) sweepHelpers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.workers.Synced():
	}
	if err := n.helperPods.sweep(n.workers.Known); err != nil {
		return fmt.Errorf("helper pods of before: %w", err)
	}
	return nil
}
