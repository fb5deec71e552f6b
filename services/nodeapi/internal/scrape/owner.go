package scrape

import (
	"slices"
	"strings"

	"github.com/microlet/microlet/proto/role"
)

// bare are the families that get no names of processes: those of the kubelet, as dashboards expect them, and those in
// which the supervisor names a service itself. Each has one owner; of two prefixes that match, the first one counts.
var bare = []struct {
	prefix string
	owner  role.Role
}{
	{"kubelet_device_plugin_", role.Resources},
	{"kubelet_evented_pleg_", role.PLEG},
	{"kubelet_eviction", role.Evictor},
	{"kubelet_http_", role.NodeAPI},
	{"kubelet_image_garbage_collected_", role.ImageGC},
	{"kubelet_node_name", role.NodeStatus},
	{"kubelet_pleg_", role.PLEG},
	{"kubelet_pod_resources_endpoint_", role.Resources},
	{"kubelet_pod_requests_", role.NodeAPI},
	{"kubelet_pod_watch_events_", role.NodeAPI},
	{"kubelet_running_", role.PLEG},
	{"kubelet_volume_metric_", role.Stats},
	{"kubelet_volume_stats_", role.Stats},
	{"kubelet_websocket_", role.NodeAPI},
	{"prober_", role.Prober},
	{"microlet_supervisor_", role.Up},
	{"kubelet_", role.Podsync},
	{"kubernetes_", role.Podsync},
	{"plugin_manager_", role.Podsync},
	{"storage_operation_", role.Podsync},
	{"volume_manager_", role.Podsync},
}

// owner returns the one service that may give a family; ok is false when each process has the family of its own.
// named reports whether the series get the name of their process.
func owner(family string) (of role.Role, ok, named bool) {
	for _, b := range bare {
		if strings.HasPrefix(family, b.prefix) {
			return b.owner, true, false
		}
	}
	// The families of the bus's clients begin as those of the bus do.
	if rest, is := strings.CutPrefix(family, "microlet_"); is {
		name, _, _ := strings.Cut(rest, "_")
		if of := role.Role(name); of != role.Bus && slices.Contains(Roles(), of) {
			return of, true, true
		}
	}
	return "", false, true
}
