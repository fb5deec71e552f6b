package pods

import (
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// history is what a worker remembers of its own attempts. All of it can be lost: the
// runtime and the pod's object hold what matters.
type history struct {
	// waiting says of each container why it could not be started last.
	waiting map[string]status.Waiting
	// refused is the generation of the pod whose refusal was reported in an event.
	refused   int64
	announced bool
	// adopted: the back-off was rebuilt from the runtime's containers.
	adopted bool
	// refusedEphemeral are the ephemeral containers that ask for what is not built, or may not join the pod.
	refusedEphemeral map[string]bool
	// failed and delayed are the failures of the last syncs, as they were logged.
	failed, delayed string
	// unswept is the same of the sweep of dead containers and replaced sandboxes, and belongs to it.
	unswept string
}

func newHistory() history {
	return history{waiting: map[string]status.Waiting{}}
}

func (h *history) waits(name, reason, message string) {
	h.waiting[name] = status.Waiting{Reason: reason, Message: message}
}

// fails reports whether a failure is another than the last one, so that a pod whose trouble
// lasts is reported once.
func (h *history) fails(err error) bool {
	before := h.failed
	h.failed = err.Error()
	return before != h.failed
}

// delays is fails for what the pod's own status shows.
func (h *history) delays(err error) bool {
	before := h.delayed
	h.delayed = err.Error()
	return before != h.delayed
}

// sweepFails is fails for the sweep of dead containers and replaced sandboxes, of which err may be nil.
func (h *history) sweepFails(err error) bool {
	before := h.unswept
	if h.unswept = ""; err != nil {
		h.unswept = err.Error()
	}
	return err != nil && before != h.unswept
}

func (h *history) runs(name string) { delete(h.waiting, name) }

// reasons returns a copy for the status, with the same reason for every container that
// has none of its own when all is not empty.
func (h *history) reasons(p *v1.Pod, all status.Waiting) map[string]status.Waiting {
	out := maps.Clone(h.waiting)
	if all.Reason == "" {
		return out
	}
	for i := range p.Spec.Containers {
		out[p.Spec.Containers[i].Name] = all
	}
	return out
}
