package hook

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Orphan runs the preStop hook of a container of a pod that no source wants any more, if its annotations describe one,
// until ctx ends. A failure is logged, because there is no pod to report it on.
func (r *Runner) Orphan(ctx context.Context, state *pod.State, c *pod.Container) {
	spec, err := r.restore(state.UID, c)
	if err == nil && spec == nil {
		return
	}
	if err == nil {
		in := Input{
			Pod: &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: state.Namespace, Name: state.Name, UID: state.UID},
			},
			Container: spec, ContainerID: c.ID,
		}
		if sandbox := state.ReadySandbox(); sandbox != nil && len(sandbox.IPs) > 0 {
			in.PodIP = sandbox.IPs[0]
		}
		err = r.Run(ctx, in, spec.Lifecycle.PreStop)
	}
	if err != nil {
		r.opts.Log.Warn("preStop hook failed", logkey.Pod, state.Namespace+"/"+state.Name, logkey.PodUID, state.UID,
			logkey.Container, c.Name, logkey.Err, err)
	}
}
