// Package top shows a running node on a terminal: its services, pods, rates and waiting calls.
package top

import (
	"fmt"
	"time"
)

// Node is what is shown at one time.
type Node struct {
	Time      time.Time
	Version   string
	Placement string
	Processes []Process
	Pods      []Pod
	Samples   map[string]Sample
	// Faults are the questions that had no answer.
	Faults []string
}

// Process is one process of the node agent.
type Process struct {
	Name, State string
	PID         int32
	Uptime      time.Duration
	Restarts    uint32
	Memory      uint64
	// Shared says that a service before it has the same process, with whose CPU and memory it is counted.
	Shared bool
	// Heartbeat is its age; negative if none was heard.
	Heartbeat time.Duration
}

// Pod is one pod of the node.
type Pod struct {
	Namespace, Name, Status string
	Ready, Containers       int32
	Restarts                int32
}

// Sample has the metrics of one process at one time, each summed over its labels.
type Sample map[string]float64

// cpuMetric is the processor time that a process has used, in seconds.
const cpuMetric = "process_cpu_seconds_total"

// figure is one line about the whole node.
type figure struct{ label, metric string }

// rates are of counters, and of the counts of histograms.
var rates = []figure{
	{"pod syncs", "kubelet_pod_worker_duration_seconds"},
	{"containers started", "kubelet_started_containers_total"},
	{"probes", "prober_probe_total"},
	{"relists", "kubelet_pleg_relist_duration_seconds"},
	{"runtime operations", "kubelet_runtime_operations_total"},
	{"calls through the CRI gateway", "microlet_cri_gateway_calls_total"},
	{"pod statuses sent", "microlet_pod_status_patches_total"},
	{"Events delivered", "microlet_outbox_delivered_events_total"},
}

// waiting are gauges of what is under way or waits.
var waiting = []figure{
	{"runtime calls that run", "microlet_runtime_calls_in_flight"},
	{"runtime calls that wait", "microlet_runtime_calls_waiting"},
	{"image pulls that wait", "microlet_image_pulls_waiting"},
	{"pod statuses to be sent", "microlet_pod_status_pending"},
	{"puts to the bus to be acknowledged", "microlet_bus_pending_puts"},
	{"HTTP requests that run", "kubelet_http_inflight_requests"},
}

// sum adds a metric over all processes; ok says whether any has it.
func (n *Node) sum(metric string) (total float64, ok bool) {
	for _, s := range n.Samples {
		if v, has := s[metric]; has {
			total, ok = total+v, true
		}
	}
	return total, ok
}

// rate is how much a counter of the processes grew in a second since the node before. A process that is new or was
// restarted began at 0.
func (n *Node) rate(before *Node, metric string, processes ...string) (perSecond float64, ok bool) {
	elapsed := n.Time.Sub(before.Time).Seconds()
	if elapsed <= 0 {
		return 0, false
	}
	if len(processes) == 0 {
		for name := range n.Samples {
			processes = append(processes, name)
		}
	}
	for _, name := range processes {
		now, has := n.Samples[name][metric]
		old, had := before.Samples[name]
		if !has || !had {
			continue
		}
		grown := now - old[metric]
		if grown < 0 {
			grown = now
		}
		perSecond, ok = perSecond+grown/elapsed, true
	}
	return perSecond, ok
}

// number is a value in at most six columns.
func number(v float64, ok bool) string {
	switch {
	case !ok:
		return "-"
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
