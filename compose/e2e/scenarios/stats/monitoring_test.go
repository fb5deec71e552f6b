//go:build long

package stats

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// monitoring is the folder with the alerts and the dashboards.
const monitoring = "../../../../deploy/monitoring"

// quietPanels have no series on a node on which nothing went wrong yet: their counters come with the first fault.
var quietPanels = map[string][]string{
	"dashboard.json": {"Failed calls", "Rejected and refused pods", "Evictions", "Images", "Denied calls"},
	"fleet.json":     {"Alerts", "Rejected, refused and evicted pods"},
}

// TestMonitoring has the real Prometheus evaluate the alerts and every query of the dashboards on what a node serves.
// No alert fires, and no panel stays empty because of a wrong name or label.
func TestMonitoring(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	p := startPrometheus(s, t, s.TokenForMetrics(t, "nodes/metrics"))
	p.AwaitValue(t, `up{job="microlet"}`, "1")
	s.CreatePods(probedPod()) // once it looks, so that there are rates
	s.WaitReady(scene.Patience, "probed")

	for file, quiet := range quietPanels {
		for panel, queries := range dashboard(t, file) {
			for _, query := range queries {
				p.Await(t, scene.Patience, file+": "+panel+": "+query, func() error {
					values, err := p.Query(query)
					if err == nil && len(values) == 0 && !slices.Contains(quiet, panel) {
						err = fmt.Errorf("no series")
					}
					return err
				})
			}
		}
	}
	p.Await(t, scene.Patience, "a look at every alert", func() error {
		rules, err := p.Rules()
		if err != nil {
			return err
		}
		for _, rule := range rules {
			if rule.Health != "ok" || rule.LastEvaluation.IsZero() {
				return fmt.Errorf("%s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
			if rule.State == "firing" {
				t.Errorf("%s fires", rule.Name)
			}
		}
		return nil
	})
}

// dashboard returns the queries of each panel of a file, with Grafana's variables replaced.
func dashboard(t *testing.T, file string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoring, file))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$instance", ".*", "$cluster", ".*", "$top", "5", "$__rate_interval", "1m")
	queries := map[string][]string{}
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			queries[panel.Title] = append(queries[panel.Title], variables.Replace(target.Expr))
		}
	}
	if len(queries) == 0 {
		t.Fatalf("%s has no query", file)
	}
	return queries
}
