package pods

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/probes/results"
)

// Probed has a pod's worker act upon a probe's result.
func (s *Workers) Probed(uid types.UID) {
	s.metrics.Wakes.WithLabelValues("prober").Inc()
	if w := s.worker(uid); w != nil {
		w.wakeByOthers()
		w.notices.add(resultDelay)
	}
}

// probeResults are what the prober said of the pod's containers. A sidecar of which the API says that it
// has started keeps that when the prober's word is lost: the pod's start must not wait for it again.
func (w *worker) probeResults(p *v1.Pod) results.Results {
	v := w.deps.Probes.Of(w.uid)
	statuses := p.Status.InitContainerStatuses
	if last, ok := w.deps.Statuses.Last(w.uid); ok {
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
