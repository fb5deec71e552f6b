// Package predecessor stops what still runs of the earlier version of a static pod.
//
// An edited manifest is a pod with another UID. After a restart of podsync, no source contains the earlier pod, and
// its containers hold the ports and folders that the new pod needs. The package never touches a pod that has a
// worker. It removes nothing: a new pod waits for no removal, and package cleanup removes what no pod needs.
package predecessor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/sources"
)

// defaultGrace is that of a container that does not say.
const defaultGrace = 30 * time.Second

// Workers knows which pods have workers.
type Workers interface {
	Known(uid types.UID) bool
}

// Runtime is what an Ender asks of the container runtime.
type Runtime interface {
	List(ctx context.Context) (map[types.UID]*pod.State, error)
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	StopSandbox(ctx context.Context, id string) error
}

// Ender ends predecessors.
type Ender struct {
	runtime Runtime
	workers Workers
	log     *slog.Logger
}

// New returns an Ender that spares the pods that have workers.
func New(runtime Runtime, workers Workers, log *slog.Logger) *Ender {
	return &Ender{runtime: runtime, workers: workers, log: log}
}

// End implements pods.Predecessors. It stops what the runtime has of a static pod under the UID of an earlier
// manifest: its containers hold the ports and folders that the new one needs, and no worker knows them.
func (e *Ender) End(ctx context.Context, p *v1.Pod) error {
	states, err := e.runtime.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for uid, state := range states {
		if uid == p.UID || state.Namespace != p.Namespace || state.Name != p.Name || e.workers.Known(uid) ||
			!static(state) {
			continue
		}
		e.log.Info("ending the static pod of an earlier manifest", logkey.Pod, p.Namespace+"/"+p.Name,
			logkey.PodUID, uid,
			"successor", p.UID)
		errs = append(errs, e.end(ctx, state))
	}
	return errors.Join(errs...)
}

// end stops a pod's containers, each with the pod's grace period, and then its sandboxes, which have its network.
func (e *Ender) end(ctx context.Context, state *pod.State) error {
	errs := make([]error, len(state.Containers))
	var all sync.WaitGroup
	for i := range state.Containers {
		c := &state.Containers[i]
		if !decide.MayRun(c) {
			continue
		}
		all.Go(func() {
			grace := defaultGrace
			if seconds, err := strconv.Atoi(c.Annotations[pod.AnnotationTerminationGracePeriod]); err == nil &&
				seconds >= 0 {
				grace = time.Duration(seconds) * time.Second
			}
			if err := e.runtime.StopContainer(ctx, c.ID, grace); err != nil {
				errs[i] = fmt.Errorf("stop container %s: %w", c.Name, err)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	errs = nil
	for i := range state.Sandboxes {
		if err := e.runtime.StopSandbox(ctx, state.Sandboxes[i].ID); err != nil {
			errs = append(errs, fmt.Errorf("stop sandbox %s: %w", state.Sandboxes[i].ID, err))
		}
	}
	return errors.Join(errs...)
}

// static reports whether the runtime has the pod from another source than the apiserver.
func static(state *pod.State) bool {
	for i := range state.Sandboxes {
		if from := state.Sandboxes[i].Annotations[podutil.ConfigSourceAnnotation]; from != "" &&
			from != sources.Name(podsyncv1.PodSource_POD_SOURCE_API) {
			return true
		}
	}
	return false
}
