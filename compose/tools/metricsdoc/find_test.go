package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const source = `package a

const name = "x_total"

var a = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: name, Help: "Counts " + "x.", ConstLabels: prometheus.Labels{"c": "1"},
}, []string{"l", "m"})

func f() {
	const ns = "ns"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: name, Help: help}, labels)
	}
	counter("b", "Counts b.", "one")
	counter("c", "Counts c.")
	labels := []string{"k"}
	prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "h", Help: "H."}, labels)
	other(prometheus.Labels{"no": "metric"})
}
`

func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"pleg/internal", "internal", "pleg/test"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{
		"pleg/internal/a.go": text, "pleg/internal/a_test.go": "no Go", "pleg/test/b.go": "no Go",
		"internal/c.go": `package c; var d = prometheus.NewGauge(prometheus.GaugeOpts{Name: "d", Help: "D | d."})`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFind(t *testing.T) {
	found, err := find(write(t, source))
	if err != nil {
		t.Fatal(err)
	}
	page := string(render(found))
	for _, want := range []string{
		"## pleg\n", "## Shared by several services\n",
		"| `x_total` | counter | `c`, `l`, `m` | Counts x. |\n",
		"| `ns_b` | counter | `one` | Counts b. |\n",
		"| `ns_c` | counter |  | Counts c. |\n",
		"| `h` | histogram | `k` | H. |\n",
		"| `d` | gauge |  | D \\| d. |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if len(found) != 5 {
		t.Errorf("found %+v, want 5", found)
	}
}

func TestWhatNoSourceTells(t *testing.T) {
	for source, want := range map[string]string{
		`package a; var a = prometheus.NewGauge(prometheus.GaugeOpts{Name: name(), Help: "A."})`: "use a literal",
		`package a; var a = prometheus.NewGauge(prometheus.GaugeOpts{Name: "a"})`:                "needs a Name and a Help",
		`package`: "expected",
	} {
		if _, err := find(write(t, source)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", source, err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	dir := write(t, source)
	page := filepath.Join(t.TempDir(), "metrics.md")
	if err := run(true, []string{dir, page}); err == nil {
		t.Error("a page that is not there is current")
	}
	if err := run(false, []string{dir, page}); err != nil {
		t.Fatal(err)
	}
	if err := run(true, []string{dir, page}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(page, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(true, []string{dir, page}); err == nil || !strings.Contains(err.Error(), "make generate") {
		t.Errorf("an old page: %v", err)
	}
	if err := run(false, nil); err == nil {
		t.Error("no arguments are accepted")
	}
}
