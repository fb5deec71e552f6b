package pods

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// hostIPsReady holds back a pod whose containers get the node's addresses while these are about to be known: what
// a container gets at its start stays.
func (w *worker) hostIPsReady(p *v1.Pod) error {
	if !w.deps.HostIPs.Awaited() || !showsHostIPs(p) {
		return nil
	}
	return reportedSoon("wait for the node's addresses", errors.New("nodestatus has not reported them yet"))
}

// showsHostIPs reports whether a container has an address of the node in its environment.
func showsHostIPs(p *v1.Pod) bool {
	fields := []string{"status.hostIP", "status.hostIPs"}
	if p.Spec.HostNetwork {
		fields = append(fields, "status.podIP", "status.podIPs")
	}
	for c := range podutil.Containers(&p.Spec) {
		if slices.ContainsFunc(c.Env, func(e v1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil &&
				slices.Contains(fields, e.ValueFrom.FieldRef.FieldPath)
		}) {
			return true
		}
	}
	return false
}
