package podsync

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/runtime"
)

// handlers knows what the runtime's handlers can do.
type handlers struct {
	runtime *runtime.Runtime
	// of names the handler that a pod runs in; "" is the runtime's default.
	of func(p *v1.Pod) string

	mu sync.Mutex
	// readOnly says of each handler whether it mounts read-only all the way down; nil is
	// unknown: the runtime has not answered yet.
	readOnly map[string]bool
}

// tell takes the runtime's newest answer. One that failed changes nothing.
func (h *handlers) tell(r *podsyncv1.Runtime) {
	if r.GetError() != "" {
		return
	}
	readOnly := make(map[string]bool, len(r.GetHandlers()))
	for _, handler := range r.GetHandlers() {
		readOnly[handler.GetName()] = handler.GetRecursiveReadOnlyMounts()
	}
	h.mu.Lock()
	h.readOnly = readOnly
	h.mu.Unlock()
}

// recursiveReadOnly says whether the pod's handler can mount read-only all the way down. A pod
// that starts before the runtime was heard waits for its answer: a mount that may be recursive
// would else silently not be.
func (h *handlers) recursiveReadOnly(p *v1.Pod) bool {
	h.mu.Lock()
	known := h.readOnly
	h.mu.Unlock()
	if known == nil && wantsRecursiveReadOnly(p) {
		known = h.ask()
	}
	return known[h.of(p)]
}

func (h *handlers) ask() map[string]bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	status, err := h.runtime.Status(ctx)
	if err != nil {
		return nil
	}
	readOnly := map[string]bool{}
	for _, handler := range status.GetRuntimeHandlers() {
		readOnly[handler.GetName()] = handler.GetFeatures().GetRecursiveReadOnlyMounts()
	}
	return readOnly
}

func wantsRecursiveReadOnly(p *v1.Pod) bool {
	for c := range podutil.Containers(&p.Spec) {
		for _, m := range c.VolumeMounts {
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled {
				return true
			}
		}
	}
	return false
}
