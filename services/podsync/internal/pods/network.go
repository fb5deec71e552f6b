package pods

import (
	"errors"

	v1 "k8s.io/api/core/v1"
)

// networkReady holds back a pod that needs the pods' network while the runtime reports that there is none. Pods on the
// host's network start: one of them may provide the network.
func (w *worker) networkReady(p *v1.Pod) error {
	if p.Spec.HostNetwork {
		return nil
	}
	problem := w.deps.RuntimeState.NetworkProblem()
	if problem == "" {
		return nil
	}
	w.deps.event(p, v1.EventTypeWarning, reasonNetworkNotReady, "network is not ready: %s", problem)
	return transient("start the pod", errors.New("network is not ready: "+problem))
}
