//go:build long

package stats

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/prometheus"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestPrometheus lets the real Prometheus scrape the node, with a service account that may read metrics and
// nothing else, and asks it what it has.
func TestPrometheus(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	s.CreatePods(probedPod())
	s.WaitReady(scene.Patience, "probed")
	// so that the indicators of health have been taken
	s.KubectlPrints("ok", "get", "--raw", "/api/v1/nodes/"+s.NodeName()+"/proxy/healthz")
	p := startPrometheus(s, t, s.TokenForMetrics(t, "nodes/metrics"))

	for _, want := range []struct{ query, value string }{
		{`up{job="microlet"}`, "1"},
		{`up{job="probes"}`, "1"},
		{`up{job="slis"}`, "1"},
		{`up{job="resource"}`, "1"},
		{`up{job="cadvisor"}`, "1"},
		// Each reader's queries of a container, a pod and the node.
		{`count(container_memory_working_set_bytes{job="resource", namespace="` + s.Namespace +
			`", pod="probed", container="main"})`, "1"},
		{`count(pod_memory_working_set_bytes{job="resource", namespace="` + s.Namespace + `", pod="probed"})`, "1"},
		{`count(rate(node_cpu_usage_seconds_total{job="resource"}[1m]) > 0)`, "1"},
		{`resource_scrape_error{job="resource"}`, "0"},
		{`count(container_memory_working_set_bytes{job="cadvisor", namespace="` + s.Namespace +
			`", pod="probed", container="main", image!=""})`, "1"},
		{`count(rate(container_cpu_usage_seconds_total{job="cadvisor", namespace="` + s.Namespace +
			`", pod="probed", container="main"}[1m]))`, "1"},
		{`count(container_network_receive_bytes_total{job="cadvisor", namespace="` + s.Namespace +
			`", pod="probed", interface="eth0"})`, "1"},
		{`count(machine_memory_bytes{job="cadvisor"})`, "1"},
		{`up{job="forbidden"}`, "0"}, // the positive control: it notices a refusal
		{`count(kubelet_runtime_operations_total{operation_type="run_podsandbox"}) > 0`, "1"},
		{`clamp_max(sum(kubelet_run_podsandbox_duration_seconds_count), 1)`, "1"},
		{`count(histogram_quantile(0.99, sum by (le) (kubelet_pod_worker_duration_seconds_bucket)))`, "1"},
		{`count(kubelet_node_name{job="microlet", node="` + s.NodeName() + `"})`, "1"},
		{`kubelet_running_pods{job="microlet"}`, "1"},
		{`kubelet_running_containers{job="microlet", container_state="running"}`, "1"},
		{`clamp_max(sum(kubelet_started_pods_total) * sum(kubelet_started_containers_total) * sum(kubelet_pod_start_duration_seconds_count), 1)`, "1"},
		{`count(process_resident_memory_bytes{job="microlet", service="podsync"})`, "1"},
		{`count(count by (service) (go_goroutines{job="microlet"}))`, fmt.Sprint(len(scene.Services) + 1)},
		{`count(prober_probe_total{job="probes", pod="probed", namespace="` + s.Namespace +
			`", probe_type="Readiness", result="successful"})`, "1"},
		{`kubernetes_healthcheck{job="slis", name="syncloop", type="healthz"}`, "1"},
		// What it took it kept: no series came twice, and none with a time of its own.
		{`prometheus_target_scrapes_sample_duplicate_timestamp_total + prometheus_target_scrapes_sample_out_of_order_total + prometheus_target_scrapes_sample_out_of_bounds_total`, "0"},
		{`clamp_max(sum_over_time(up{job="microlet"}[1m]), 3)`, "3"},
	} {
		p.AwaitValue(t, want.query, want.value)
	}
	for _, job := range []string{"microlet", "resource", "cadvisor"} {
		samples, err := p.Ask(`scrape_samples_scraped{job="` + job + `"}`)
		took, err2 := p.Ask(`scrape_duration_seconds{job="` + job + `"}`)
		t.Logf("a scrape of %s has %s samples and takes %s s: %v %v", job, samples, took, err, err2)
	}
}

// probedPod runs a command as its readiness probe every second.
func probedPod() *corev1.Pod {
	p := scene.ScriptPod("probed", scene.Forever)
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}},
		PeriodSeconds: 1,
	}
	return p
}

// operatorLabels are of the kind that the Prometheus operator gives a target. They must not take the place of those
// that say which service or container a series is of.
var operatorLabels = map[string]string{
	"namespace": "monitoring", "service": "kubelet", "pod": "agent", "container": "agent", "endpoint": "https-metrics",
}

// startPrometheus starts the program, which uses the token, and ends it with the test.
func startPrometheus(s *scene.Scene, t *testing.T, token string) *prometheus.Server {
	t.Helper()
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	var jobs []prometheus.Object
	for name, path := range map[string]string{
		"microlet":  "/metrics", // as the alerts expect
		"probes":    "/metrics/probes",
		"slis":      "/metrics/slis",
		"resource":  "/metrics/resource",
		"cadvisor":  "/metrics/cadvisor",
		"forbidden": "/debug/pprof/cmdline",
	} {
		jobs = append(jobs, prometheus.Object{
			"job_name":       name,
			"scheme":         "https",
			"metrics_path":   path,
			"authorization":  prometheus.Object{"credentials_file": tokenFile},
			"tls_config":     prometheus.Object{"insecure_skip_verify": true},
			"static_configs": prometheus.Targets(operatorLabels, net.JoinHostPort(s.NodeIP(), "10250")),
			// as the monitors of the chart do
			"relabel_configs": []prometheus.Object{{"action": "labeldrop", "regex": "namespace|service|pod|container"}},
		})
	}
	rules, err := filepath.Abs(filepath.Join(monitoring, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return prometheus.Start(t, s.Binary(rig.Prometheus), 5*time.Second, rules, jobs)
}
