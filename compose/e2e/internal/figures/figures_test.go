package figures

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

const summary = `{
 "node": {"nodeName": "n", "cpu": {"time": "2026-01-01T00:00:10Z", "usageCoreNanoSeconds": 3000}},
 "pods": [{
  "podRef": {"name": "p", "namespace": "ns", "uid": "u"},
  "containers": [{"name": "c", "memory": {"time": "2026-01-01T00:00:12Z", "workingSetBytes": 18446744073709551615}}],
  "network": {"interfaces": [{"name": "eth0", "rxBytes": 7}]},
  "swap": null
 }]
}`

func TestSummary(t *testing.T) {
	got, err := Summary([]byte(summary))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"node.nodeName":                                   "n",
		"node.cpu.time":                                   "2026-01-01T00:00:10Z",
		"node.cpu.usageCoreNanoSeconds":                   "3000",
		"pods[ns/p].podRef.name":                          "p",
		"pods[ns/p].podRef.namespace":                     "ns",
		"pods[ns/p].podRef.uid":                           "u",
		"pods[ns/p].containers[c].name":                   "c",
		"pods[ns/p].containers[c].memory.time":            "2026-01-01T00:00:12Z",
		"pods[ns/p].containers[c].memory.workingSetBytes": "18446744073709552000",
		"pods[ns/p].network.interfaces[eth0].name":        "eth0",
		"pods[ns/p].network.interfaces[eth0].rxBytes":     "7",
		"pods[ns/p].swap":                                 "null",
	}
	has := map[string]string{}
	for path, fact := range got {
		has[path] = fact.String()
	}
	if !maps.Equal(has, want) {
		t.Errorf("facts are %v", has)
	}
	if at := got["pods[ns/p].containers[c].memory.workingSetBytes"].At; at.Second() != 12 {
		t.Errorf("the memory was taken at %s", at)
	}
	if at := got["pods[ns/p].network.interfaces[eth0].rxBytes"].At; !at.IsZero() {
		t.Errorf("the network was taken at %s", at)
	}
	for _, broken := range []string{
		"", `{"node":{"time":"noon"}}`,
		`{"pods":[{"podRef":{"name":"p","namespace":"ns"}},{"podRef":{"name":"p","namespace":"ns"}}]}`,
	} {
		if _, err := Summary([]byte(broken)); err == nil {
			t.Errorf("%q is a summary", broken)
		}
	}
}

const page = `# HELP container_cpu_usage_seconds_total Time.
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{pod="p",container="c"} 2 1000
container_cpu_usage_seconds_total{container="d",pod="p"} 4 3000
# HELP scrape_error Error.
# TYPE scrape_error gauge
scrape_error 0
`

func TestMetrics(t *testing.T) {
	got, err := Metrics([]byte(page))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]string{}
	for path, fact := range got {
		has[path] = fact.String()
	}
	want := map[string]string{
		"TYPE container_cpu_usage_seconds_total":                   "COUNTER",
		"HELP container_cpu_usage_seconds_total":                   "Time.",
		"timestamps container_cpu_usage_seconds_total":             "all",
		`container_cpu_usage_seconds_total{container="c",pod="p"}`: "2",
		`container_cpu_usage_seconds_total{container="d",pod="p"}`: "4",
		"TYPE scrape_error":       "GAUGE",
		"HELP scrape_error":       "Error.",
		"timestamps scrape_error": "none",
		"scrape_error{}":          "0",
	}
	if !maps.Equal(has, want) {
		t.Errorf("facts are %v", has)
	}
	for _, broken := range []string{
		"a{",                                 // no series
		"a 1\na 1\n",                         // twice
		"# TYPE a counter\n# TYPE a gauge\n", // a family in two places
		"# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
	} {
		if _, err := Metrics([]byte(broken)); err == nil {
			t.Errorf("%q is a page", broken)
		}
	}
}

// numbers are facts of numbers.
func numbers(of map[string]float64) Facts {
	f := Facts{}
	for path, n := range of {
		f[path] = Fact{Number: n}
	}
	return f
}

func TestCompare(t *testing.T) {
	rules := []Rule{
		Moving(`\.moving$`),
		Near(`\.memory$`, 0.05, 10),
		NearTime(`\.start$`, time.Second),
	}
	a := numbers(map[string]float64{
		"a.moving": 1, "a.memory": 1000, "b.memory": 1, "c.memory": 1000, "d.memory": 0, "same": 5, "other": 5,
		"gone.moving": 1,
	})
	b := numbers(map[string]float64{
		"a.moving": 9, "a.memory": 1052, "b.memory": 11, "c.memory": 1053, "d.memory": 11, "same": 5, "other": 6,
		"new.moving": 0,
	})
	a["empty"], b["empty"] = Fact{Text: "x"}, Fact{}
	for path, times := range map[string][2]string{
		"a.start": {"2026-01-01T00:00:00Z", "2026-01-01T00:00:00.9Z"},
		"b.start": {"2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z"},
		"c.start": {"2026-01-01T00:00:00Z", "noon"},
	} {
		a[path], b[path] = Fact{Text: times[0]}, Fact{Text: times[1]}
	}
	var got []string
	for _, d := range Compare(a, b, rules) {
		got = append(got, d.String())
	}
	want := []string{
		"b.start: the kubelet says 2026-01-01T00:00:00Z, microlet 2026-01-01T00:00:02Z",
		"c.memory: the kubelet says 1000, microlet 1053",
		"c.start: the kubelet says 2026-01-01T00:00:00Z, microlet noon",
		"d.memory: the kubelet says 0, microlet 11",
		"empty: the kubelet says x, microlet 0",
		"gone.moving: only the kubelet has it: 1",
		"new.moving: only microlet has it: 0",
		"other: the kubelet says 5, microlet 6",
	}
	if !slices.Equal(got, want) {
		t.Errorf("differences:\n%s", strings.Join(got, "\n"))
	}
	if d := Compare(a, a, rules[:2]); len(d) != 0 {
		t.Errorf("what is the same differs: %v", d)
	}
}

func TestRate(t *testing.T) {
	got, err := Metrics([]byte(page))
	if err != nil {
		t.Fatal(err)
	}
	const c, d = `container_cpu_usage_seconds_total{container="c",pod="p"}`,
		`container_cpu_usage_seconds_total{container="d",pod="p"}`
	later := maps.Clone(got)
	later[c] = Fact{Number: 5, At: time.UnixMilli(7000)}
	if rate, err := Rate(got, later, c); err != nil || rate != 0.5 {
		t.Errorf("the rate is %v: %v", rate, err)
	}
	for _, path := range []string{d, "scrape_error{}", "TYPE scrape_error", "nosuch"} {
		if rate, err := Rate(got, later, path); err == nil {
			t.Errorf("%s grows by %v", path, rate)
		}
	}
}

func TestWithoutSandboxImages(t *testing.T) {
	got := WithoutSandboxImages(numbers(map[string]float64{
		`a{container="",id="/x",image="pause",pod="p"}`: 1, `a{container="c",id="/x",image="i",pod="p"}`: 2, "b{}": 3,
	}))
	want := numbers(map[string]float64{
		`a{container="",id="/x",image="",pod="p"}`: 1, `a{container="c",id="/x",image="i",pod="p"}`: 2, "b{}": 3,
	})
	if !maps.Equal(got, want) {
		t.Errorf("facts are %v", got)
	}
}

func TestUnexplained(t *testing.T) {
	all := []Difference{{"a.x", "1", ""}, {"a.x", "", "1"}, {"a.y", "1", "2"}, {"b.x", "1", "2"}}
	got := Unexplained(all, []Explanation{
		Explain(`^a\.x$`, OnlyKubelet, "it is not built"), Explain(`^a\.y$`, nil, "it is rounded"),
		Explain(`^b`, OnlyMicrolet, "it is new"),
	})
	if want := []Difference{all[1], all[3]}; !slices.Equal(got, want) {
		t.Errorf("unexplained are %v", got)
	}
	if text := fmt.Sprint(Explain("x", nil, "y")); text != "x: y" {
		t.Errorf("an explanation is %q", text)
	}
}
