//go:build long

package stats

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

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
		got := ""
		p.await(t, scene.Patience, want.query, func() error {
			var err error
			if got, err = p.ask(want.query); err == nil && got != want.value {
				err = fmt.Errorf("it says %s, want %s", got, want.value)
			}
			return err
		})
	}
	for _, job := range []string{"microlet", "resource", "cadvisor"} {
		samples, err := p.ask(`scrape_samples_scraped{job="` + job + `"}`)
		took, err2 := p.ask(`scrape_duration_seconds{job="` + job + `"}`)
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

// freeAddress is a free address of loopback, for a program that cannot choose its own.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// prometheus is one that runs.
type prometheus struct {
	address string
	ended   chan error
}

// startPrometheus starts the program, which uses the token, and ends it with the test.
func startPrometheus(s *scene.Scene, t *testing.T, token string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	address := freeAddress(t)
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	jobs := []object{{"job_name": "itself", "static_configs": []object{{"targets": []string{address}}}}}
	for name, path := range map[string]string{
		"microlet":  "/metrics", // as the alerts expect
		"probes":    "/metrics/probes",
		"slis":      "/metrics/slis",
		"resource":  "/metrics/resource",
		"cadvisor":  "/metrics/cadvisor",
		"forbidden": "/debug/pprof/cmdline",
	} {
		jobs = append(jobs, object{
			"job_name":       name,
			"scheme":         "https",
			"metrics_path":   path,
			"authorization":  object{"credentials_file": tokenFile},
			"tls_config":     object{"insecure_skip_verify": true},
			"static_configs": []object{{"targets": []string{net.JoinHostPort(s.NodeIP(), "10250")}}},
		})
	}
	rules, err := filepath.Abs(filepath.Join(monitoring, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(object{
		"global":         object{"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "5s"},
		"rule_files":     []string{rules},
		"scrape_configs": jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(s.Binary(rig.Prometheus), "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &prometheus{address: address, ended: make(chan error, 1)}
	go func() { p.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if text, err := os.ReadFile(logs.Name()); t.Failed() {
			t.Logf("Prometheus has logged (%v):\n%s", err, text)
		}
		logs.Close()
	})
	p.await(t, scene.Patience, "its readiness", func() error {
		answer, err := http.Get("http://" + address + "/-/ready")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", answer.Status)
		}
		return nil
	})
	return p
}

// await is await for what Prometheus is asked, which must live.
func (p *prometheus) await(t *testing.T, patience time.Duration, what string, check func() error) {
	t.Helper()
	scene.Await(t, patience, "Prometheus: "+what, func() error {
		select {
		case err := <-p.ended:
			p.ended <- err
			t.Fatalf("Prometheus has ended: %v", err)
		default:
		}
		return check()
	})
}

// ask evaluates a query that has one value.
func (p *prometheus) ask(query string) (string, error) {
	values, err := p.query(query)
	if err != nil {
		return "", err
	}
	if len(values) != 1 {
		return "", fmt.Errorf("%d series", len(values))
	}
	return values[0], nil
}

// query evaluates a query, and returns the value of each series.
func (p *prometheus) query(query string) ([]string, error) {
	var data struct {
		Result []struct {
			Value [2]any `json:"value"` // time, and the value as a string
		} `json:"result"`
	}
	if err := p.get("/api/v1/query?query="+url.QueryEscape(query), &data); err != nil {
		return nil, err
	}
	values := make([]string, len(data.Result))
	for i, r := range data.Result {
		values[i] = fmt.Sprint(r.Value[1])
	}
	return values, nil
}

// get reads the data of an answer of the API.
func (p *prometheus) get(path string, data any) error {
	answer, err := http.Get("http://" + p.address + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	result := struct {
		Error string `json:"error"`
		Data  any    `json:"data"`
	}{Data: data}
	if err := json.NewDecoder(answer.Body).Decode(&result); err != nil {
		return fmt.Errorf("%s: %w", answer.Status, err)
	}
	if result.Error != "" {
		return fmt.Errorf("%s: %s", answer.Status, result.Error)
	}
	return nil
}
