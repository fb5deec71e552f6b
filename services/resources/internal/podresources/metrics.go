package podresources

import "github.com/prometheus/client_golang/prometheus"

// The versions of the API, as metrics have them.
const (
	versionV1       = "v1"
	versionV1alpha1 = "v1alpha1"
)

// method is what is counted beside the total of all calls.
type method int

const (
	total method = iota // counted in the total alone
	list
	get
	getAllocatable
)

// Metrics count the calls, under the kubelet's names.
type Metrics struct {
	all              *prometheus.CounterVec
	requests, errors map[method]*prometheus.CounterVec
}

// NewMetrics registers the counters.
func NewMetrics(r prometheus.Registerer) *Metrics {
	vec := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_resources_endpoint_" + name, Help: help + " By version of the API.",
		}, []string{"server_api_version"})
		r.MustRegister(c)
		return c
	}
	return &Metrics{
		all: vec("requests_total", "Calls of the podresources API."),
		requests: map[method]*prometheus.CounterVec{
			list:           vec("requests_list", "Calls of List of the podresources API."),
			get:            vec("requests_get", "Calls of Get of the podresources API."),
			getAllocatable: vec("requests_get_allocatable", "Calls of GetAllocatableResources of the podresources API."),
		},
		errors: map[method]*prometheus.CounterVec{
			list: vec("errors_list", "Calls of List of the podresources API that failed."),
			get:  vec("errors_get", "Calls of Get of the podresources API that failed."),
			getAllocatable: vec("errors_get_allocatable",
				"Calls of GetAllocatableResources of the podresources API that failed."),
		},
	}
}

// count counts a call when it has ended. Those that the rate limit refused are not counted.
func (m *Metrics) count(of method, version string, err *error) {
	m.all.WithLabelValues(version).Inc()
	if c := m.requests[of]; c != nil {
		c.WithLabelValues(version).Inc()
	}
	if c := m.errors[of]; c != nil && *err != nil {
		c.WithLabelValues(version).Inc()
	}
}
