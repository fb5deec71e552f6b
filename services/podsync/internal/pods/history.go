package pods

// history is what a worker remembers of its own attempts. All of it can be lost: the runtime and the pod's object hold
// what matters.
type history struct {
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

// fails reports whether a failure differs from the last one, so that a lasting failure is logged once.
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
