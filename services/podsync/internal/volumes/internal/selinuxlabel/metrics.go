package selinuxlabel

import "github.com/prometheus/client_golang/prometheus"

// counts are the errors of one kind, and those that are none as long as volumes of their access mode have no labels.
type counts struct{ errors, warnings *prometheus.GaugeVec }

type metrics struct {
	container, pod, volume counts
	admitted               *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	mode := []string{"access_mode"}
	both := []string{"volume_plugin", "access_mode"}
	m := &metrics{
		container: counts{
			errors: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "volume_manager_selinux_container_errors_total",
				Help: "Attempts that failed because no SELinux label could be made of a container's options. The pod does " +
					"not start, and is tried again.",
			}, mode),
			warnings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "volume_manager_selinux_container_warnings_total",
				Help: "Volumes for which no SELinux label could be made of a container's options, and which need none " +
					"because of their access mode.",
			}, mode),
		},
		pod: counts{
			errors: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "volume_manager_selinux_pod_context_mismatch_errors_total",
				Help: "Attempts that failed because containers of one pod use a volume with different SELinux labels. The " +
					"pod does not start, and is tried again.",
			}, mode),
			warnings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "volume_manager_selinux_pod_context_mismatch_warnings_total",
				Help: "Volumes that containers of one pod use with different SELinux labels, and which have none because " +
					"of their access mode.",
			}, mode),
		},
		volume: counts{
			errors: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "volume_manager_selinux_volume_context_mismatch_errors_total",
				Help: "Attempts that failed because another pod has the volume with another SELinux label. The pod does " +
					"not start, and is tried again.",
			}, both),
			warnings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "volume_manager_selinux_volume_context_mismatch_warnings_total",
				Help: "Volumes that pods have with different SELinux labels, and which are mounted with none because of " +
					"their access mode.",
			}, both),
		},
		admitted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "volume_manager_selinux_volumes_admitted_total",
			Help: "Volumes whose SELinux label is known, and whose driver mounts with it.",
		}, both),
	}
	if r != nil {
		for _, c := range []counts{m.container, m.pod, m.volume} {
			r.MustRegister(c.errors, c.warnings)
		}
		r.MustRegister(m.admitted)
	}
	return m
}
