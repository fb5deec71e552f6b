package worker

import (
	"context"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/decide"
	"github.com/microlet/microlet/services/podsync/internal/proberesults"
)

// Probed has a pod's worker act upon a probe's result. Unlike other wake-ups this one counts
// while the pod is being stopped, too: a pod that ends turns unready as its probe says.
func (s *Workers) Probed(uid types.UID) {
	s.metrics.Wakes.WithLabelValues("prober").Inc()
	w := s.worker(uid)
	if w == nil {
		return
	}
	select {
	case w.probed <- struct{}{}:
	default:
	}
	w.wake()
}

// reportProbes reports the pod anew at each result of a probe until the returned function is called,
// which waits for the last report. The worker itself must change nothing of its own meanwhile.
func (w *worker) reportProbes(ctx context.Context, p *v1.Pod, removed bool) (stop func()) {
	if removed {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var reports sync.WaitGroup
	reports.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.probed:
			}
			if state, err := w.readOnce(ctx); err == nil {
				w.report(p, state)
			}
		}
	})
	return func() { cancel(); reports.Wait() }
}

// probeResults are what the prober said of the pod's containers. A sidecar of which the API says that it
// has started keeps that when the prober's word is lost: the pod's start must not wait for it again.
func (w *worker) probeResults(p *v1.Pod) proberesults.Results {
	v := w.deps.Probes.Of(w.uid)
	statuses := p.Status.InitContainerStatuses
	if last, ok := w.deps.Mirrors.Last(w.uid); ok {
		statuses = last.InitContainerStatuses
	}
	for i := range statuses {
		s := &statuses[i]
		_, id, _ := strings.Cut(s.ContainerID, "://")
		if v.Startup[id] == decide.Unknown && id != "" && s.State.Running != nil && s.Started != nil && *s.Started {
			v.Startup[id] = decide.Success
		}
	}
	return v
}
