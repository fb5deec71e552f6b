package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const oneRun = `{"bench": "TestBenchAgents", "date": "2026-11-28T22:00:00Z", "version": "abc", "kernel": "6.18",
 "cores": 2, "contenders": ["kubelet", "microlet", "runtime alone"],
 "rows": [{"name": "one pod, created to Ready, p50 (s)",
   "samples": {"kubelet": [0.5, 0.9, 0.4], "microlet": [0.2, 0.3], "runtime alone": [0.1]}}]}`

func TestHistory(t *testing.T) {
	dir := t.TempDir()
	run1 := filepath.Join(dir, "run.json")
	history, chart := filepath.Join(dir, "history.jsonl"), filepath.Join(dir, "chart.svg")
	if err := os.WriteFile(run1, []byte(oneRun), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := run(history, run1, chart); err != nil {
			t.Fatal(err)
		}
	}
	runs, err := readHistory(history)
	if err != nil || len(runs) != 2 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	got := runs[1].Rows[0].Medians
	if got["kubelet"] != 0.5 || got["microlet"] != 0.25 || got["runtime alone"] != 0.1 || runs[1].Rounds != 3 {
		t.Errorf("%+v", runs[1])
	}
	if r := ratio(runs[0], drawn[0].row); r != 0.5 {
		t.Errorf("the ratio is %v", r)
	}
	picture, err := os.ReadFile(chart)
	if err != nil || !bytes.Contains(picture, []byte("one pod")) || !bytes.Contains(picture, []byte("2026-11-28")) {
		t.Errorf("%v: %s", err, picture)
	}
}

func TestBadSamples(t *testing.T) {
	for want, text := range map[string]string{
		"compares nothing":           `{"contenders": ["kubelet"], "rows": [{}]}`,
		"unknown field":              `{"what": 1}`,
		`"r" has no sample of a`:     `{"contenders": ["a", "b"], "rows": [{"name": "r", "samples": {"a": []}}]}`,
		"unexpected EOF":             `{"contenders": [`,
		"cannot unmarshal number":    `{"contenders": 1}`,
		"no run of a node with all ": strings.Replace(oneRun, `"cores": 2`, `"cores": 2, "oneCore": true`, 1),
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "run.json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := run(filepath.Join(dir, "history.jsonl"), path, filepath.Join(dir, "chart.svg"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
