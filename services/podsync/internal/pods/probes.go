package pods

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// Probed has a pod's worker act on a probe's result.
func (s *Workers) Probed(uid types.UID) {
	s.metrics.Wakes.WithLabelValues("prober").Inc()
	if w := s.worker(uid); w != nil {
		w.wakeByOthers(resultDelay)
	}
}

// probeResults returns the results of the probes of the pod's containers. A sidecar that has started according to the
// API counts as started when the prober's result is lost: the pod's start must not wait for it again.
func (d *Deps) probeResults(p *v1.Pod) decide.Results {
	v := d.Probes.Of(p.UID)
	statuses := p.Status.InitContainerStatuses
	if last, ok := d.Statuses.Last(p.UID); ok {
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
