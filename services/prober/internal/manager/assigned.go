package manager

import (
	v1 "k8s.io/api/core/v1"

	proberv1 "github.com/microlet/microlet/proto/microlet/prober/v1"
	"github.com/microlet/microlet/services/prober/internal/worker"
)

// assigned takes the generation of the pod's assignment. A result under an older one is put again, and so is ours if a
// late result of the previous replica has overwritten it: that replica was stopped or cut off when the pod was taken
// from it.
func (r *reporter) assigned(generation uint64, known *proberv1.ProbeResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := r.generation != generation
	r.generation = generation
	if changed || known != nil && known.GetGeneration() < generation {
		r.put()
	}
}

// AnnotationPlugin begins the annotation that names the plugin of one probe of one container:
// "microlet.dev/probe-plugin.<container>.<readiness|liveness|startup>".
const AnnotationPlugin = "microlet.dev/probe-plugin."

func pluginOf(p *v1.Pod, container string, kind worker.Kind) string {
	return p.Annotations[AnnotationPlugin+container+"."+string(kind)]
}
