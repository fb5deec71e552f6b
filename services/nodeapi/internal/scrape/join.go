package scrape

import (
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/microlet/microlet/proto/role"
)

// serviceLabel tells apart what each service has: the process's own figures, Go's, its requests.
const serviceLabel = "service"

// join makes one family of each name. A series of the kubelet's own families has one owner and stays as
// it is, as dashboards expect it; all others get their service's name. Of two equal series, and of
// two types of one family, the one of the service that starts first stays.
func join(roles []role.Role, said []map[string]*dto.MetricFamily, f Filter) map[string]*dto.MetricFamily {
	joined := map[string]*dto.MetricFamily{}
	seen := map[string]bool{}
	for i, r := range roles {
		for name, family := range said[i] {
			if !f.take(r, name) {
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
					label(m, string(r))
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

// kubelets says whether the kubelet has a family of this name, and one process of it alone.
func kubelets(family string) bool {
	for _, prefix := range []string{"kubelet_", "prober_", "kubernetes_", "storage_operation_", "volume_manager_", "plugin_manager_"} {
		if strings.HasPrefix(family, prefix) {
			return true
		}
	}
	return false
}

// label adds the service's name, unless the series has one.
func label(m *dto.Metric, service string) {
	for _, l := range m.GetLabel() {
		if l.GetName() == serviceLabel {
			return
		}
	}
	m.Label = append(m.Label, &dto.LabelPair{Name: new(serviceLabel), Value: &service})
}

// identity of a series within its family; services write labels in order of their names.
func identity(m *dto.Metric) string {
	var b strings.Builder
	for _, l := range m.GetLabel() {
		b.WriteString(l.GetName() + "\x00" + l.GetValue() + "\x00")
	}
	return b.String()
}
