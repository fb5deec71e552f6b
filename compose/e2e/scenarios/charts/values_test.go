//go:build long

package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestLint has Helm lint the charts, with each helper and each kind of monitoring.
func TestLint(t *testing.T) {
	h := newHelm(t)
	h.run("lint", "--strict", h.chart("microlet"), "--set", "criticalPodsQuota=10",
		"--set", "operators[0].kind=Group,operators[0].name=admins",
		"--set", "metricsReaders[0].kind=ServiceAccount,metricsReaders[0].name=p,metricsReaders[0].namespace=monitoring")
	h.run("lint", "--strict", h.chart("microlet-helpers"))
	h.run(append([]string{"lint", "--strict", h.chart("microlet-helpers")}, everything...)...)
	h.run("lint", "--strict", h.chart("microlet-helpers"), "--set", "serviceMonitor.enabled=true")
}

// TestMonitors has each kind of monitor scrape all pages of nodeapi under the name of the job that the alerts expect.
func TestMonitors(t *testing.T) {
	h := newHelm(t)
	for kind, values := range map[string][]string{
		"PodMonitor":     {"--set", "podMonitor.enabled=true", "--set", "helpers.nodeapi.enabled=true"},
		"ServiceMonitor": {"--set", "serviceMonitor.enabled=true", "--set", "serviceMonitor.nodes=edge-.*"},
	} {
		out, err := h.try(append([]string{"template", "release", h.chart("microlet-helpers")}, values...)...)
		if err != nil {
			t.Fatal(err)
		}
		wants := []string{"kind: " + kind + "\n", "path: /metrics\n", "path: /metrics/cadvisor\n", "replacement: microlet}"}
		if kind == "ServiceMonitor" {
			wants = append(wants, "port: https-metrics\n", `regex: "edge-.*"}`, "bearerTokenFile: /var/run/secrets/")
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("the %s lacks %q:\n%s", kind, want, out)
			}
		}
	}
}

// TestReadmeHasEveryValue looks for each value of the charts in the tables of their pages.
func TestReadmeHasEveryValue(t *testing.T) {
	h := newHelm(t)
	for _, chart := range []string{"microlet", "microlet-helpers"} {
		page, err := os.ReadFile(filepath.Join(h.chart(chart), "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(h.chart(chart), "values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var values map[string]any
		if err := yaml.Unmarshal(text, &values); err != nil {
			t.Fatal(err)
		}
		for _, path := range valuePaths(values, "") {
			if !hasValue(string(page), path) {
				t.Errorf("the page of %s has no row for %s", chart, path)
			}
		}
	}
}

// valuePaths are the paths of all values that are no objects; those of the helpers once, for any name.
func valuePaths(values map[string]any, path string) (all []string) {
	for key, value := range values {
		at := strings.TrimPrefix(path+"."+key, ".")
		if path == "helpers" {
			at = "helpers.<name>"
		}
		inner, isObject := value.(map[string]any)
		switch {
		case isObject && len(inner) > 0 && key != "updateStrategy" && key != "resources" && key != "nodeSelector" &&
			key != "matchLabels":
			all = append(all, valuePaths(inner, at)...)
		default:
			all = append(all, at)
		}
	}
	return all
}

// hasValue reports whether a row has the value: its whole path, or its parent's with another value first.
func hasValue(page, path string) bool {
	i := strings.LastIndex(path, ".")
	for row := range strings.Lines(page) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		if strings.Contains(cell, "`"+path+"`") ||
			i > 0 && strings.HasPrefix(cell, "`"+path[:i]+".") && strings.Contains(cell, "`"+path[i:]+"`") {
			return true
		}
	}
	return false
}

// everything enables all that the chart of the helpers has.
var everything = []string{
	"--set", "helpers.nodeapi.enabled=true", "--set", "helpers.stats.enabled=true",
	"--set", "helpers.evictor.enabled=true", "--set", "helpers.imagegc.enabled=true",
	"--set", "prometheusRule.enabled=true", "--set", "podMonitor.enabled=true",
}

// TestRefusedValues gives the charts values that are wrong. The answer names the value.
func TestRefusedValues(t *testing.T) {
	h := newHelm(t)
	for _, c := range []struct{ chart, set, names string }{
		{"microlet-helpers", "runtimeDir=run/microlet", "runtimeDir"},
		{"microlet-helpers", "runtimeDIR=/run/microlet", "runtimeDIR"},
		{"microlet-helpers", "peerCgroups=null", "peerCgroups"},
		{"microlet-helpers", "peerCgroups[0]=microlet.service", "peerCgroups/0"},
		{"microlet-helpers", "verbosity=loud", "verbosity"},
		{"microlet-helpers", "verbosity=11", "verbosity"},
		{"microlet-helpers", "image.pullPolicy=Sometimes", "image/pullPolicy"},
		{"microlet-helpers", "image.digest=sha256:1", "image/digest"},
		{"microlet-helpers", "image.tag=a b", "image/tag"},
		{"microlet-helpers", "image.repository=", "image/repository"},
		{"microlet-helpers", "helpers.podsync.enabled=true", "podsync"},
		{"microlet-helpers", "helpers.prober.enabled=maybe", "helpers/prober/enabled"},
		{"microlet-helpers", "helpers.prober.replicas=3", "replicas"},
		{"microlet-helpers", "helpers.prober.extraArgs[0]=v=4", "helpers/prober/extraArgs/0"},
		{"microlet-helpers", "helpers.prober.updateStrategy.type=Recreate", "helpers/prober/updateStrategy/type"},
		{"microlet-helpers", "helpers.stats.updateStrategy.rollingUpdate.maxSurge=1",
			"stats/updateStrategy/rollingUpdate"},
		{"microlet-helpers", "terminationGracePeriodSeconds=-1", "terminationGracePeriodSeconds"},
		{"microlet-helpers", "podMonitor.interval=often", "podMonitor/interval"},
		{"microlet-helpers", "podMonitor.enabled=true", "helpers.nodeapi.enabled"},
		{"microlet-helpers", "serviceMonitor.interval=often", "serviceMonitor/interval"},
		{"microlet-helpers", "serviceMonitor.matchLabels=null,serviceMonitor.port=", "serviceMonitor/port"},
		{"microlet-helpers", "serviceMonitor.enabled=true,podMonitor.enabled=true,helpers.nodeapi.enabled=true",
			"serviceMonitor.enabled"},
		{"microlet-helpers", "prometheusRule.runbookURL=docs/alerts.md", "prometheusRule/runbookURL"},
		{"microlet-helpers", "networkPolicy.enabled=maybe", "networkPolicy/enabled"},
		{"microlet", "namespace.name=Microlet", "namespace/name"},
		{"microlet", "namespace=microlet", "namespace"},
		{"microlet", "criticalPodsQuota=-1", "criticalPodsQuota"},
		{"microlet", "operators[0].kind=Robot,operators[0].name=r", "operators/0/kind"},
		{"microlet", "metricsReaders[0].kind=ServiceAccount,metricsReaders[0].name=p", "metricsReaders/0"},
		{"microlet", "namespaces=a", "namespaces"},
	} {
		t.Run(c.chart+" "+c.set, func(t *testing.T) {
			out, err := h.try("template", "release", h.chart(c.chart), "--set", c.set)
			if err == nil {
				t.Fatalf("it is accepted: %s", out)
			}
			if !strings.Contains(err.Error(), c.names) {
				t.Errorf("the answer does not name %s: %v", c.names, err)
			}
		})
	}
}
