package main

import (
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
	alertName  = regexp.MustCompile(`(?m)^  - alert: (\w+)$`)
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
		for _, name := range metricName.FindAllString(string(text), -1) {
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
