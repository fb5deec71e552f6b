package pods

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Admission decides which pods may run here; see admission.Admitter.
type Admission interface {
	Add(p *v1.Pod, source podsyncv1.PodSource)
	Heard(source podsyncv1.PodSource)
	Admit(ctx context.Context, p *v1.Pod, source podsyncv1.PodSource, running bool) (admission.Result, error)
	// Rejected counts a pod that was admitted, and may then not run here all the same.
	Rejected(reason string)
	// Removed notes that the pod's source wants it no longer.
	Removed(uid types.UID)
	// Placed returns the pods that have a place on the node.
	Placed(ctx context.Context) (admission.Placed, error)
	Ended(uid types.UID)
	Forget(uid types.UID)
}

// admit asks, until it has an answer, whether the pod may run here. It is false for a pod that may not, which is then
// on its way to its end, and for a version that has other resources than were granted. The next sync has those. A pod
// that needs devices is asked for when it has its place, which it keeps meanwhile. One that runs has them.
func (w *worker) admit(ctx context.Context, p *v1.Pod, state *pod.State) (bool, error) {
	// What has ended asks for no place any more.
	if w.admitted || podutil.IsTerminal(p.Status.Phase) {
		return true, nil
	}
	running := state.ReadySandbox() != nil || state.AnyRunning()
	ctx, span := tracing.Start(ctx, "canAdmitPod")
	result, err := w.deps.Admission.Admit(ctx, p, w.source, running)
	span.End(err)
	if err != nil {
		return false, transient("admit the pod", err)
	}
	if result.Admitted() && !running && w.deps.Grants.Needs(p) {
		v, err := w.allocate(ctx, p, state)
		if err != nil {
			return false, err
		}
		if !v.Admitted() {
			w.deps.Admission.Rejected(v.Reason)
			w.reject(p, v)
			return false, nil
		}
	}
	if result.Admitted() {
		w.admitted = true
		judged := p
		if result.Judged != nil {
			judged = result.Judged
		}
		w.deps.Allocation.Admitted(judged)
		w.inbox.regrant() // a version that came meanwhile may ask for more
		w.standing.note(func(s *Standing) { s.Admitted = true })
		// This version may ask for more too: it was not judged if the pod was admitted before it came.
		return w.deps.Allocation.Apply(p) == p, nil
	}
	w.reject(p, result)
	return false, nil
}

// reject ends a pod that may not run here.
func (w *worker) reject(p *v1.Pod, why admission.Result) {
	w.reporter.reject(&why)
	w.standing.note(func(s *Standing) { s.Rejection = &why })
	w.move(causeRejected)
	w.deps.event(p, v1.EventTypeWarning, why.Reason, "%s", why.Message)
}
