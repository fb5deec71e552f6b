package decide

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// What may be wrong with a pod's sandbox, in the words of the PodReadyToStartContainers
// condition.
const (
	noSandbox          = "no pod sandbox exists"
	manySandboxes      = "multiple pod sandboxes are ready and need to be reconciled"
	sandboxNotReady    = "pod sandbox is not ready"
	networkModeChanged = "network namespace mode changed and sandbox needs to be recreated"
	sandboxHasNoIP     = "pod sandbox has no IP address"
)

// SandboxChanged reports whether the pod needs a new sandbox, the attempt number of the one
// that it needs or has, and what is wrong with the present one.
func SandboxChanged(p *v1.Pod, st *pod.State) (changed bool, attempt uint32, message string) {
	if len(st.Sandboxes) == 0 {
		return true, 0, noSandbox
	}
	newest := &st.Sandboxes[0]
	ready := 0
	for i := range st.Sandboxes {
		if st.Sandboxes[i].Ready {
			ready++
		}
	}
	switch {
	case ready > 1:
		message = manySandboxes
	case !newest.Ready:
		message = sandboxNotReady
	case newest.HostNetwork != p.Spec.HostNetwork:
		message = networkModeChanged
	case !p.Spec.HostNetwork && len(newest.IPs) == 0:
		message = sandboxHasNoIP
	default:
		return false, newest.Attempt, ""
	}
	return true, newest.Attempt + 1, message
}
