//go:build long

package charts

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/compose/e2e/internal/prometheus"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// runbooks is the page that the alerts lead to.
const runbooks = "https://runbooks.example/node-agent"

// monitorKinds are the kinds of monitor with the labels that the Prometheus operator gives the targets of each.
var monitorKinds = []struct {
	kind   string
	values []string
	labels map[string]string
}{
	{"PodMonitor", []string{"podMonitor.enabled=true", "helpers.nodeapi.enabled=true"}, map[string]string{
		"namespace": namespace, "pod": "helpers-nodeapi-x", "container": "nodeapi", "endpoint": "10250",
	}},
	{"ServiceMonitor", []string{"serviceMonitor.enabled=true"}, map[string]string{
		"namespace": "kube-system", "service": "kubelet", "endpoint": "https-metrics", "node": "edge",
		"__meta_kubernetes_endpoint_address_target_name": "edge",
	}},
}

// TestMonitorsInPrometheus has the real Prometheus scrape nodes as each monitor of the chart says, under the labels
// that the operator gives their targets, and evaluate the chart's alerts. No series speaks for another node. Then one
// node leaves, one goes down, one runs a kubelet again, and on one a service dies. Two alerts fire: the node that is
// down, and the service that is dead.
func TestMonitorsInPrometheus(t *testing.T) {
	program, err := rig.PrometheusProgram(t.Context(), rig.Options{Out: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range monitorKinds {
		t.Run(m.kind, func(t *testing.T) {
			h := newHelm(t)
			args := []string{"template", "release", h.chart("microlet-helpers"), "--set", "prometheusRule.enabled=true",
				"--set", "prometheusRule.runbookURL=" + runbooks}
			for _, v := range m.values {
				args = append(args, "--set", v)
			}
			fleet := newFleet(t, m.labels)
			objects := monitoringObjects(t, h.run(args...))
			p := prometheus.Start(t, program, time.Second, ruleFile(t, objects["PrometheusRule"]),
				fleet.jobs(objects[m.kind]))
			fleet.scraped(t, p)
			fleet.change(t)
			fleet.judge(t, p)
		})
	}
}

// fleet are the nodes that Prometheus scrapes.
type fleet struct {
	nodes map[string]*node
	// file is where Prometheus finds the nodes.
	file   string
	labels map[string]string
}

// node serves pages as nodeapi does.
type node struct {
	*httptest.Server
	// dead is the service that does not run; kubelet is that of a node without microlet.
	dead atomic.Value
}

const kubelet = "kubelet"

func newFleet(t *testing.T, labels map[string]string) *fleet {
	f := &fleet{nodes: map[string]*node{}, file: filepath.Join(t.TempDir(), "targets.json"), labels: labels}
	for _, name := range []string{"whole", "gone", "down", "back", "lame"} {
		n := &node{}
		n.dead.Store("")
		n.Server = httptest.NewTLSServer(n)
		t.Cleanup(n.Close)
		f.nodes[name] = n
	}
	f.write(t)
	return f
}

// write writes the file of the nodes.
func (f *fleet) write(t *testing.T) {
	var addresses []string
	for _, n := range f.nodes {
		addresses = append(addresses, n.Listener.Addr().String())
	}
	text, err := json.Marshal(prometheus.Targets(f.labels, addresses...))
	if err != nil {
		t.Fatal(err)
	}
	// Prometheus must not read half a file.
	if err := os.WriteFile(f.file+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.file+".new", f.file); err != nil {
		t.Fatal(err)
	}
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var page strings.Builder
	switch dead := n.dead.Load(); {
	case dead == kubelet:
		page.WriteString("kubelet_running_pods 3\n")
	case r.URL.Path == "/metrics":
		for _, service := range role.All() {
			if string(service) != dead {
				fmt.Fprintf(&page, "microlet_build_info{service=%q,version=\"v1\"} 1\n", service)
			}
		}
	case r.URL.Path == "/metrics/cadvisor":
		for _, labels := range []string{
			`container="",id="/",image="",name="",namespace="",pod=""`,
			`container="main",id="/kubepods/x",image="i",name="n",namespace="shop",pod="web"`,
		} {
			fmt.Fprintf(&page, "container_memory_working_set_bytes{%s} 1\n", labels)
		}
		// An attacker who has taken over stats speaks for another node.
		page.WriteString(`microlet_build_info{instance="another",job="microlet",service="ghost",version="v1"} 1` + "\n")
	case r.URL.Path == "/metrics/resource":
		page.WriteString(`pod_memory_working_set_bytes{namespace="shop",pod="web"} 1` + "\n")
	case r.URL.Path == "/metrics/probes":
		page.WriteString(`prober_probe_total{container="main",namespace="shop",pod="web",probe_type="Readiness"} 1` + "\n")
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = io.WriteString(w, page.String()) // a Prometheus that has gone needs none
}

// monitoringObjects are the objects of the operator in what Helm has printed, by kind.
func monitoringObjects(t *testing.T, printed string) map[string]map[string]any {
	objects := map[string]map[string]any{}
	_, printed, _ = strings.Cut(printed, "---\n") // before it, Helm says what it has found
	for document := range strings.SplitSeq(printed, "\n---\n") {
		var o struct {
			Kind string
			Spec map[string]any
		}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		objects[o.Kind] = o.Spec
	}
	return objects
}

// forTime is how long an alert of the rules is pending. rules-test.yaml tests these times.
var forTime = regexp.MustCompile(`(?m)^(\s+for:) \w+$`)

// ruleFile is a file with the groups of a PrometheusRule, whose alerts do not wait.
func ruleFile(t *testing.T, spec map[string]any) string {
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, forTime.ReplaceAll(text, []byte("$1 3s")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// jobs are the endpoints of a monitor as the configuration of Prometheus has them: the names of the fields are those of
// the monitor with underscores.
func (f *fleet) jobs(spec map[string]any) (jobs []prometheus.Object) {
	endpoints, _ := spec["endpoints"].([]any)
	if endpoints == nil {
		endpoints, _ = spec["podMetricsEndpoints"].([]any)
	}
	for _, e := range endpoints {
		e, _ := e.(map[string]any)
		job := prometheus.Object{
			"job_name": e["path"], "metrics_path": e["path"], "scheme": e["scheme"],
			"honor_timestamps": e["honorTimestamps"], "tls_config": prometheus.Object{"insecure_skip_verify": true},
			"file_sd_configs": []prometheus.Object{{"files": []string{f.file}}},
			"relabel_configs": underscored(e["relabelings"]),
		}
		if honor, ok := e["honorLabels"]; ok { // without, Prometheus has a default
			job["honor_labels"] = honor
		}
		jobs = append(jobs, job)
	}
	return jobs
}

// underscored is a value with its fields' names in snake_case.
func underscored(value any) any {
	switch v := value.(type) {
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = underscored(v[i])
		}
		return all
	case map[string]any:
		all := map[string]any{}
		for name, field := range v {
			var b strings.Builder
			for _, r := range name {
				if unicode.IsUpper(r) {
					b.WriteByte('_')
				}
				b.WriteRune(unicode.ToLower(r))
			}
			all[b.String()] = underscored(field)
		}
		return all
	}
	return value
}

// scraped waits until Prometheus has all pages of all nodes, and judges that the series have kept their labels.
func (f *fleet) scraped(t *testing.T, p *prometheus.Server) {
	t.Helper()
	pages := fmt.Sprint(4 * len(f.nodes))
	nodes := fmt.Sprint(len(f.nodes))
	p.AwaitValue(t, `sum(up{job!="itself"})`, pages)
	for query, want := range map[string]string{
		`count(count by (instance, service) (microlet_build_info{job="microlet"}))`: fmt.Sprint(
			len(f.nodes) * len(role.All())),
		`count(container_memory_working_set_bytes{namespace="shop", pod="web", container="main"})`: nodes,
		// The node itself is no container, and a pod's own figure is none of a container.
		`count(container_memory_working_set_bytes{id="/", namespace="", pod="", container=""})`:            nodes,
		`count(pod_memory_working_set_bytes{namespace="shop", pod="web", container=""})`:                   nodes,
		`count(prober_probe_total{namespace="shop", pod="web", container="main"})`:                         nodes,
		`count({instance="another"} or {job="microlet", service="ghost"}) or vector(0)`:                    "0",
		`count({__name__=~".+", exported_service!=""} or {__name__=~".+", exported_pod!=""}) or vector(0)`: "0",
	} {
		if got, err := p.Ask(query); err != nil || got != want {
			t.Errorf("%s is %s, want %s: %v", query, got, want, err)
		}
	}
}

// change has one node leave, one go down, one run a kubelet again, and a service die on one.
func (f *fleet) change(t *testing.T) {
	f.nodes["down"].Close()
	f.nodes["back"].dead.Store(kubelet)
	f.nodes["lame"].dead.Store(string(role.Podsync))
	gone := f.nodes["gone"]
	delete(f.nodes, "gone")
	f.write(t)
	f.nodes["gone"] = gone
}

// judge waits for the two alerts, and some evaluations more, in which others would fire.
func (f *fleet) judge(t *testing.T, p *prometheus.Server) {
	t.Helper()
	at := func(name string) string { return f.nodes[name].Listener.Addr().String() }
	want := []string{"MicroletNodeDown " + at("down") + " ", "MicroletServiceMissing " + at("lame") + " podsync"}
	p.AwaitValue(t, `count(up{job="microlet"})`, fmt.Sprint(len(f.nodes)-1))
	p.Await(t, scene.Patience, "alerts", func() error {
		firing, err := firing(t, p)
		for _, w := range want {
			if err == nil && !slices.Contains(firing, w) {
				err = fmt.Errorf("%q fire, want %q", firing, w)
			}
		}
		return err
	})
	// Staleness, the time that an alert is pending, and an evaluation: ten periods hold all of them.
	first := time.Now()
	p.Await(t, scene.Patience, "evaluations after the alerts", func() error {
		rules, err := p.Rules()
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.LastEvaluation.Sub(first) < 10*time.Second {
				return fmt.Errorf("%s was evaluated at %v", r.Name, r.LastEvaluation)
			}
		}
		return nil
	})
	got, err := firing(t, p)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("alerts fire: %q, want %q", got, want)
	}
}

// firing are the alerts that fire, each with its node and service. Each leads to its section of the runbooks.
func firing(t *testing.T, p *prometheus.Server) (all []string, err error) {
	rules, err := p.Rules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if r.Health == "err" {
			t.Fatalf("%s: %s", r.Name, r.LastError)
		}
		for _, a := range r.Alerts {
			if a.State != "firing" {
				continue
			}
			all = append(all, r.Name+" "+a.Labels["instance"]+" "+a.Labels["service"])
			if got, want := a.Annotations["runbook_url"], runbooks+"#"+strings.ToLower(r.Name); got != want {
				t.Errorf("%s leads to %q, want %q", r.Name, got, want)
			}
		}
	}
	return all, nil
}
