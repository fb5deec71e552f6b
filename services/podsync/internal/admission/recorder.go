package admission

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
)

// Recorder records which of the pods that it admits are helpers of the node agent.
//
// It writes one file per helper to the runtime folder, as long as anything of the pod may run. Every service reads
// there which pod has which role. A helper is recorded before anything of it starts, and waits if it cannot be
// recorded. Records of an earlier podsync about pods that are gone are removed after every source has delivered its
// list.
type Recorder struct {
	*Admitter
	helpers Helpers
	records peer.Helpers
	log     *slog.Logger

	mu sync.Mutex // between the sweep and a pod that comes
}

// newRecorder returns a Recorder that admits as a does.
func newRecorder(a *Admitter, helpers Helpers, records peer.Helpers, log *slog.Logger) *Recorder {
	return &Recorder{Admitter: a, helpers: helpers, records: records, log: log}
}

// Admit admits as the Admitter does. A helper that cannot be recorded is not admitted yet.
func (a *Recorder) Admit(ctx context.Context, p *v1.Pod, source podsyncv1.PodSource,
	running bool) (Result, error) {
	result, err := a.Admitter.Admit(ctx, p, source, running)
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
		return Result{}, err
	}
	if r != "" {
		a.log.Info("pod is a helper", logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID, logkey.Role, r)
	}
	return result, nil
}

// Ended notes that nothing of a pod runs any more.
func (a *Recorder) Ended(uid types.UID) {
	a.forget(uid)
	a.Admitter.Ended(uid)
}

// Forget removes what is known of a pod.
func (a *Recorder) Forget(uid types.UID) {
	a.forget(uid)
	a.Admitter.Forget(uid)
}

func (a *Recorder) forget(uid types.UID) {
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
func (a *Recorder) Sweep(ctx context.Context, workers Workers) error {
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
func (a *Recorder) sweep(known func(types.UID) bool) error {
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
