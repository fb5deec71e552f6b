package scrape

import (
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/microlet/microlet/services/internal/service"
)

// What tells apart what each process has: its own figures, Go's, its requests.
const (
	serviceLabel = "service"
	replicaLabel = "replica" // not of the first
)

// join makes one family of each name. A series of the kubelet's own families has one owner and stays as
// it is, as dashboards expect it; all others get their process's name. Of two equal series, and of
// two types of one family, the one of the process that comes first stays.
func join(of []process, said []map[string]*dto.MetricFamily, f Filter) map[string]*dto.MetricFamily {
	joined := map[string]*dto.MetricFamily{}
	seen := map[string]bool{}
	for i, p := range of {
		for name, family := range said[i] {
			if !f.take(name) || len(family.GetMetric()) == 0 {
				continue
			}
			all := joined[name]
			if all == nil {
				all = &dto.MetricFamily{Name: family.Name, Help: family.Help, Type: family.Type}
				joined[name] = all
			}
			if all.GetType() != family.GetType() {
				continue
			}
			for _, m := range family.GetMetric() {
				if !kubelets(name) {
					label(m, serviceLabel, string(p.role))
					if p.replica != service.DefaultReplica {
						label(m, replicaLabel, p.replica)
					}
				}
				if key := name + "\x00" + identity(m); !seen[key] {
					seen[key] = true
					all.Metric = append(all.Metric, m)
				}
			}
		}
	}
	return joined
}

// kubelets reports whether the kubelet has a family of this name, and one process of it alone.
func kubelets(family string) bool {
	for _, prefix := range []string{"kubelet_", "prober_", "kubernetes_", "storage_operation_", "volume_manager_",
		"plugin_manager_"} {
		if strings.HasPrefix(family, prefix) {
			return true
		}
	}
	return false
}

// label adds a label, unless the series has one of this name.
func label(m *dto.Metric, name, value string) {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return
		}
	}
	m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &value})
}

// identity of a series within its family; services write labels in order of their names.
func identity(m *dto.Metric) string {
	var b strings.Builder
	for _, l := range m.GetLabel() {
		b.WriteString(l.GetName() + "\x00" + l.GetValue() + "\x00")
	}
	return b.String()
}
