package exposition

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Resource writes /metrics/resource from a summary of CPU and memory. stale says that newer figures could not be had,
// which the page calls an error. It returns the sink's error. The sink may not keep what it gets.
func Resource(s *statsapi.Summary, stale bool, sink func([]byte) error) error {
	w := &writer{buf: make([]byte, 0, partSize+4096), sink: sink}
	pods := named(s.Pods)
	writeContainers(w, pods)
	writeNode(w, &s.Node)
	writePods(w, pods)
	failed := 0.0
	if stale {
		failed = 1
	}
	w.family("resource_scrape_error", gauge,
		"[STABLE] 1 if there was an error while getting container metrics, 0 otherwise")
	w.metric("", failed, time.Time{})
	// The kubelet hides scrape_error, which said the same until 1.29.
	w.flush()
	return w.err
}

// labelledPod is a pod with the labels of its metrics, and those of its containers.
type labelledPod struct {
	*statsapi.PodStats

	labels     string
	containers []string
}

// named labels the pods. The labels have no UID: of two pods of one name, as when one is recreated while the old one
// still ends, the newer has them.
func named(pods []statsapi.PodStats) []labelledPod {
	newest := map[[2]string]*statsapi.PodStats{}
	for i := range pods {
		p := &pods[i]
		key := [2]string{p.PodRef.Namespace, p.PodRef.Name}
		if other := newest[key]; other == nil || other.StartTime.Before(&p.StartTime) {
			newest[key] = p
		}
	}
	var all []labelledPod
	for i := range pods {
		p := &pods[i]
		if newest[[2]string{p.PodRef.Namespace, p.PodRef.Name}] != p {
			continue
		}
		one := labelledPod{PodStats: p, labels: label("namespace", p.PodRef.Namespace) + "," + label("pod", p.PodRef.Name)}
		for j := range p.Containers {
			one.containers = append(one.containers, label("container", p.Containers[j].Name)+","+one.labels)
		}
		all = append(all, one)
	}
	return all
}

// point is a value at a time; a nil value is unknown.
type point struct {
	value *uint64
	at    metav1.Time
}

func cpuOf(s *statsapi.CPUStats) point {
	if s == nil {
		return point{}
	}
	return point{s.UsageCoreNanoSeconds, s.Time}
}

func memoryOf(s *statsapi.MemoryStats) point {
	if s == nil {
		return point{}
	}
	return point{s.WorkingSetBytes, s.Time}
}

func swapOf(s *statsapi.SwapStats) point {
	if s == nil {
		return point{}
	}
	return point{s.SwapUsageBytes, s.Time}
}

// bytes writes a number of bytes, if it is known.
func (w *writer) bytes(labels string, p point) {
	if p.value != nil {
		w.metric(labels, float64(*p.value), p.at.Time)
	}
}

// seconds writes nanoseconds as seconds, if they are known.
func (w *writer) seconds(labels string, p point) {
	if p.value != nil {
		w.metric(labels, seconds(*p.value), p.at.Time)
	}
}

func writeNode(w *writer, n *statsapi.NodeStats) {
	w.family("node_cpu_usage_seconds_total", counter, "[STABLE] Cumulative cpu time consumed by the node in core-seconds")
	w.seconds("", cpuOf(n.CPU))
	w.family("node_memory_working_set_bytes", gauge, "[STABLE] Current working set of the node in bytes")
	w.bytes("", memoryOf(n.Memory))
	w.family("node_swap_usage_bytes", gauge,
		"[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems")
	w.bytes("", swapOf(n.Swap))
}

func writePods(w *writer, pods []labelledPod) {
	w.family("pod_cpu_usage_seconds_total", counter, "[STABLE] Cumulative cpu time consumed by the pod in core-seconds")
	for _, p := range pods {
		w.seconds(p.labels, cpuOf(p.CPU))
	}
	w.family("pod_memory_working_set_bytes", gauge, "[STABLE] Current working set of the pod in bytes")
	for _, p := range pods {
		w.bytes(p.labels, memoryOf(p.Memory))
	}
	w.family("pod_swap_usage_bytes", gauge,
		"[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems")
	for _, p := range pods {
		w.bytes(p.labels, swapOf(p.Swap))
	}
}

func writeContainers(w *writer, pods []labelledPod) {
	each := func(write func(labels string, c *statsapi.ContainerStats)) {
		for _, p := range pods {
			for i := range p.Containers {
				write(p.containers[i], &p.Containers[i])
			}
		}
	}
	w.family("container_cpu_usage_seconds_total", counter,
		"[STABLE] Cumulative cpu time consumed by the container in core-seconds")
	each(func(labels string, c *statsapi.ContainerStats) { w.seconds(labels, cpuOf(c.CPU)) })
	w.family("container_memory_working_set_bytes", gauge, "[STABLE] Current working set of the container in bytes")
	each(func(labels string, c *statsapi.ContainerStats) { w.bytes(labels, memoryOf(c.Memory)) })
	w.family("container_start_time_seconds", gauge,
		"[STABLE] Start time of the container since unix epoch in seconds")
	each(func(labels string, c *statsapi.ContainerStats) {
		if c.StartTime.Unix() > 0 {
			w.metric(labels, float64(c.StartTime.UnixNano())/float64(time.Second), time.Time{})
		}
	})
	w.family("container_swap_limit_bytes", gauge,
		"[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems")
	each(func(labels string, c *statsapi.ContainerStats) {
		if c.Swap != nil && c.Swap.SwapAvailableBytes != nil {
			limit := *c.Swap.SwapAvailableBytes
			if c.Swap.SwapUsageBytes != nil {
				limit += *c.Swap.SwapUsageBytes
			}
			w.metric(labels, float64(limit), c.Swap.Time.Time)
		}
	})
	w.family("container_swap_usage_bytes", gauge,
		"[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems")
	each(func(labels string, c *statsapi.ContainerStats) { w.bytes(labels, swapOf(c.Swap)) })
}
