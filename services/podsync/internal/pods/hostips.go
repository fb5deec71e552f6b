package pods

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// hostIPsReady holds back a pod with the node's addresses in its containers' environment until these are known: the
// environment of a container never changes.
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
