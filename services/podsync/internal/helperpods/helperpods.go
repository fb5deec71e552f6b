// Package helperpods records which pods are helpers of the node agent.
//
// It writes one file per helper to the runtime folder, as long as anything of the pod may run. Every service reads
// there which pod has which role. A helper is recorded before anything of it starts, and waits if it cannot be
// recorded. Records of an earlier podsync about pods that are gone are removed after every source has delivered its
// list.
package helperpods

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// Admission records the helper pods that it admits.
type Admission struct {
	worker.Admission
	helpers admission.Helpers
	records peer.Helpers
	log     *slog.Logger

	mu sync.Mutex // between the sweep and a pod that comes
}

var _ worker.Admission = (*Admission)(nil)

// New returns an admission that admits as a does.
func New(a worker.Admission, helpers admission.Helpers, records peer.Helpers, log *slog.Logger) *Admission {
	return &Admission{Admission: a, helpers: helpers, records: records, log: log}
}

// Admit implements worker.Admission. A helper that cannot be recorded is not admitted yet.
func (a *Admission) Admit(ctx context.Context, p *v1.Pod, source podsyncv1.PodSource,
	running bool) (admission.Result, error) {
	result, err := a.Admission.Admit(ctx, p, source, running)
	if err != nil || !result.Admitted() {
		return result, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.helpers.Role(p)
	if r == "" { // nor is it what it was before a restart
		err = a.records.Forget(string(p.UID))
	} else {
		err = a.records.Record(string(p.UID), r)
	}
	if err != nil {
		return admission.Result{}, err
	}
	if r != "" {
		a.log.Info("pod is a helper", logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID, logkey.Role, r)
	}
	return result, nil
}

// Ended implements worker.Admission.
func (a *Admission) Ended(uid types.UID) {
	a.forget(uid)
	a.Admission.Ended(uid)
}

// Forget implements worker.Admission.
func (a *Admission) Forget(uid types.UID) {
	a.forget(uid)
	a.Admission.Forget(uid)
}

func (a *Admission) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.records.Forget(string(uid)); err != nil {
		a.log.Error("a pod that has ended is still recorded as a helper", logkey.PodUID, uid, logkey.Err, err)
	}
}

// Workers knows which pods have workers.
type Workers interface {
	// Synced is closed once every source has been heard.
	Synced() <-chan struct{}
	Known(uid types.UID) bool
}

// Sweep removes, once every source was heard, what an earlier podsync recorded of pods that are gone.
func (a *Admission) Sweep(ctx context.Context, workers Workers) error {
	select {
	case <-ctx.Done():
		return nil
	case <-workers.Synced():
	}
	if err := a.sweep(workers.Known); err != nil {
		return fmt.Errorf("helper pods of before: %w", err)
	}
	return nil
}

// sweep removes the records of pods that are not known.
func (a *Admission) sweep(known func(types.UID) bool) error {
	uids, err := a.records.List()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range uids {
		if known(types.UID(uid)) {
			continue
		}
		if err := a.records.Forget(uid); err != nil {
			return err
		}
	}
	return nil
}
