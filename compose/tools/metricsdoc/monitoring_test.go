package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// top is the checkout's.
const top = "../../.."

// runbooks is docs/alerts.md as a browser opens it. The chart replaces it by its value prometheusRule.runbookURL.
const runbooks = "https://github.com/microlet/microlet/blob/main/docs/alerts.md"

var (
	metricName = regexp.MustCompile(`\b(?:microlet|kubelet|prober)_[a-z0-9_]+`)
	// matcher is one of a label, in a query or in a dashboard's JSON.
	matcher   = regexp.MustCompile(`\b[a-z0-9_]+(?:=~|!~|!=|=)\\?"`)
	alertName = regexp.MustCompile(`(?m)^  - alert: (\w+)$`)
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A metric that is renamed would leave an alert that never fires and a panel that stays empty.
func TestMonitoringNamesMetricsThatExist(t *testing.T) {
	known := read(t, "docs/metrics.md")
	files, err := filepath.Glob(filepath.Join(top, "deploy/monitoring/*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files below deploy/monitoring: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(matcher.ReplaceAllString(string(text), ""), -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !strings.Contains(known, "| `"+name+"` |") && !strings.Contains(known, "| `"+base+"` |") {
				t.Errorf("%s names %s, which docs/metrics.md does not have", filepath.Base(file), name)
			}
		}
	}
}

func TestEachAlertHasARunbookAndATest(t *testing.T) {
	rules, tests, page := read(t, "deploy/monitoring/rules.yaml"), read(t, "deploy/monitoring/rules-test.yaml"),
		read(t, "docs/alerts.md")
	alerts := alertName.FindAllStringSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("no alert in rules.yaml")
	}
	for _, a := range alerts {
		name := a[1]
		if !strings.Contains(rules, "runbook_url: "+runbooks+"#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s has no runbook_url below %s", name, runbooks)
		}
		if !strings.Contains(page, "\n## "+name+"\n") {
			t.Errorf("docs/alerts.md does not describe %s", name)
		}
		if !strings.Contains(tests, name) {
			t.Errorf("rules-test.yaml does not test %s", name)
		}
	}
}

// shown is the part of a Grafana dashboard that a reader needs to understand it.
type shown struct {
	UID        string
	Panels     []shownPanel
	Templating struct{ List []struct{ Name string } }
}

type shownPanel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ Expr, LegendFormat string }
}

func TestEachPanelIsDescribedAndKnowsTheCluster(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(top, "deploy/monitoring/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards below deploy/monitoring: %v", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			var d shown
			if err := json.Unmarshal([]byte(read(t, "deploy/monitoring/"+name)), &d); err != nil {
				t.Fatal(err)
			}
			if d.UID == "" {
				t.Error("no uid: a link cannot lead to it")
			}
			for i, p := range d.Panels {
				p.verify(t, i+1)
				for _, other := range d.Panels[:i] {
					if p.overlaps(other) {
						t.Errorf("panel %q lies over %q", p.Title, other.Title)
					}
				}
			}
			d.verifyVariables(t)
		})
	}
}

// verify reports what the panel with the id lacks.
func (p shownPanel) verify(t *testing.T, id int) {
	t.Helper()
	if p.ID != id {
		t.Errorf("panel %q has the id %d, want %d", p.Title, p.ID, id)
	}
	if g := p.GridPos; g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
		t.Errorf("panel %q does not lie in the grid of 24 columns: %+v", p.Title, g)
	}
	if p.Type == "row" {
		return
	}
	if !strings.HasSuffix(p.Description, ".") {
		t.Errorf("panel %q is not described by a sentence: %q", p.Title, p.Description)
	}
	if len(p.Targets) == 0 {
		t.Errorf("panel %q has no query", p.Title)
	}
	for _, target := range p.Targets {
		selectors, clusters := strings.Count(target.Expr, "{"), strings.Count(target.Expr, `cluster=~"$cluster"`)
		if selectors == 0 || clusters != selectors {
			t.Errorf("panel %q has a selector without the cluster: %s", p.Title, target.Expr)
		}
		if target.LegendFormat == "" && p.Type != "table" {
			t.Errorf("panel %q has a query without a name for its series: %s", p.Title, target.Expr)
		}
	}
}

func (p shownPanel) overlaps(other shownPanel) bool {
	a, b := p.GridPos, other.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

var variable = regexp.MustCompile(`\$(\w+)`)

// verifyVariables reports variables of queries that the dashboard does not have. Those of Grafana begin with two
// underscores.
func (d shown) verifyVariables(t *testing.T) {
	t.Helper()
	known := map[string]bool{}
	for _, v := range d.Templating.List {
		known[v.Name] = true
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			for _, match := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if name := match[1]; !known[name] && !strings.HasPrefix(name, "__") {
					t.Errorf("panel %q: the dashboard has no variable %s", p.Title, name)
				}
			}
		}
	}
}
