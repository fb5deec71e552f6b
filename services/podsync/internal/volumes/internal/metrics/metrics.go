// Package metrics measures volumes as the kubelet does: how long operations take, and how many there are.
package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The kubelet's names of what is done.
const (
	Mount         = "volume_mount"
	Unmount       = "volume_unmount"
	Map           = "map_volume"
	Unmap         = "unmap_volume"
	UnmountDevice = "unmount_device"
	UnmapDevice   = "unmap_device"
	// overall is from when a pod wants a volume until it has it.
	overall = "overall_volume_mount"
)

// pluginCSI is the plugin of all CSI drivers.
const pluginCSI = "kubernetes.io/csi"

// Metrics are safe for concurrent use.
type Metrics struct {
	// registered reports whether a CSI driver is.
	registered       func(driver string) bool
	operation, total *prometheus.HistogramVec

	mu sync.Mutex
	// pods are the volumes that they want, or have.
	pods map[types.UID]map[string]*volume
}

type volume struct {
	plugin string
	mapped bool
	since  time.Time
	// wanted is false when the volume is to be taken from the pod. mounted is true as long as the pod has it.
	wanted, mounted bool
}

// New returns metrics; registerer may be nil. Drivers that registered does not report stay without a name: pods choose
// what they write.
func New(registerer prometheus.Registerer, registered func(driver string) bool) *Metrics {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	m := &Metrics{
		registered: registered, pods: map[types.UID]map[string]*volume{},
		operation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Help: "Storage operation duration", Buckets: buckets,
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		total: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "volume_operation_total_seconds", Help: "Storage operation end to end duration in seconds", Buckets: buckets,
		}, []string{"plugin_name", "operation_name"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.operation, m.total, m)
	}
	return m
}

// CSI is the name of a driver's plugin.
func (m *Metrics) CSI(driver string) string {
	if m.registered == nil || !m.registered(driver) {
		return pluginCSI
	}
	return pluginCSI + ":" + driver
}

// PersistentVolume is the name of the plugin of a PersistentVolume.
func (m *Metrics) PersistentVolume(pv *v1.PersistentVolume) string {
	switch {
	case pv.Spec.CSI != nil:
		return m.CSI(pv.Spec.CSI.Driver)
	case pv.Spec.Local != nil:
		return "kubernetes.io/local-volume"
	case pv.Spec.NFS != nil:
		return "kubernetes.io/nfs"
	case pv.Spec.HostPath != nil:
		return "kubernetes.io/host-path"
	}
	return "N/A"
}

// Operation measures one operation from its begin until now.
func (m *Metrics) Operation(plugin, operation string, began time.Time, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.operation.WithLabelValues(plugin, operation, status, "false").Observe(time.Since(began).Seconds())
}

// Want notes that a pod wants a volume, as a device if it is mapped.
func (m *Metrics) Want(pod types.UID, name string, mapped bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[pod] == nil {
		m.pods[pod] = map[string]*volume{}
	}
	if m.pods[pod][name] == nil {
		m.pods[pod][name] = &volume{plugin: "N/A", mapped: mapped, since: time.Now()}
	}
	m.pods[pod][name].wanted = true
}

// Has notes that the pod has a volume that it wants, of a plugin.
func (m *Metrics) Has(pod types.UID, name, plugin string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.pods[pod][name]; v != nil {
		v.plugin, v.mounted = plugin, true
	}
}

// SetUp measures an attempt to give a pod a volume that it wants, from its begin until now. Plugin is empty as long as
// it is unknown: nothing was attempted then.
func (m *Metrics) SetUp(pod types.UID, name, plugin string, began time.Time, err error) {
	if plugin == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.pods[pod][name]
	if v == nil {
		return
	}
	v.plugin = plugin
	operation := Mount
	if v.mapped {
		operation = Map
	}
	m.Operation(plugin, operation, began, err)
	if err != nil {
		return
	}
	if !v.mounted && !v.mapped {
		m.total.WithLabelValues(plugin, overall).Observe(time.Since(v.since).Seconds())
	}
	v.mounted = true
}

// Leave notes that a pod wants none of its volumes any more. What is returned measures the attempt to take them, which
// are taken together.
func (m *Metrics) Leave(pod types.UID) (done func(err error)) {
	began := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.pods[pod] {
		v.wanted = false
	}
	return func(err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, v := range m.pods[pod] {
			switch {
			case !v.mounted:
			case v.mapped:
				m.Operation(v.plugin, Unmap, began, err)
			default:
				m.Operation(v.plugin, Unmount, began, err)
			}
		}
		if err == nil {
			delete(m.pods, pod)
		}
	}
}

// number returns a gauge of the volumes in each state of the kubelet's.
func number() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "volume_manager_total_volumes", Help: "Number of volumes in Volume Manager",
	}, []string{"plugin_name", "state"})
}

// Describe describes the number.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { number().Describe(ch) }

// Collect counts the volumes.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	counts := number()
	m.mu.Lock()
	for _, volumes := range m.pods {
		for _, v := range volumes {
			if v.wanted {
				counts.WithLabelValues(v.plugin, "desired_state_of_world").Inc()
			}
			if v.mounted {
				counts.WithLabelValues(v.plugin, "actual_state_of_world").Inc()
			}
		}
	}
	m.mu.Unlock()
	counts.Collect(ch)
}
