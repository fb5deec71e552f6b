package pluginregistration

import "github.com/prometheus/client_golang/prometheus"

// counts are the kubelet's metric of plugins by socket.
type counts struct{ plugins *prometheus.GaugeVec }

func newCounts(r prometheus.Registerer) counts {
	c := counts{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "plugin_manager_total_plugins",
		Help: "Number of plugins in Plugin Manager",
	}, []string{"socket_path", "state"})}
	r.MustRegister(c.plugins)
	return c
}

// desired says whether a socket is there.
func (c counts) desired(socket string, is bool) { c.set(socket, "desired_state_of_world", is) }

// actual says whether its plugin is registered.
func (c counts) actual(socket string, is bool) { c.set(socket, "actual_state_of_world", is) }

func (c counts) set(socket, state string, is bool) {
	if is {
		c.plugins.WithLabelValues(socket, state).Set(1)
	} else {
		c.plugins.DeleteLabelValues(socket, state)
	}
}
