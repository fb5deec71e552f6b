package top

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
)

const exposition = `# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 12.5
# TYPE prober_probe_total counter
prober_probe_total{pod="a",result="successful"} 3
prober_probe_total{pod="b",result="failed"} 4
# TYPE kubelet_pod_worker_duration_seconds histogram
kubelet_pod_worker_duration_seconds_bucket{operation_type="sync",le="+Inf"} 9
kubelet_pod_worker_duration_seconds_sum{operation_type="sync"} 1
kubelet_pod_worker_duration_seconds_count{operation_type="sync"} 9
# TYPE microlet_runtime_calls_waiting gauge
microlet_runtime_calls_waiting 2
# TYPE go_goroutines gauge
go_goroutines 100
`

func TestParseSample(t *testing.T) {
	s, err := ParseSample(strings.NewReader(exposition))
	if err != nil {
		t.Fatal(err)
	}
	wanted := Sample{
		cpuMetric: 12.5, "prober_probe_total": 7, "kubelet_pod_worker_duration_seconds": 9,
		"microlet_runtime_calls_waiting": 2,
	}
	for name, want := range wanted {
		if s[name] != want {
			t.Errorf("%s is %v, want %v", name, s[name], want)
		}
	}
	if len(s) != len(wanted) {
		t.Errorf("it has more than is shown: %v", s)
	}
	if _, err := ParseSample(strings.NewReader("no metrics {")); err == nil {
		t.Error("nonsense was accepted")
	}
}

func TestRate(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	before := &Node{Time: at, Samples: map[string]Sample{"a": {"m": 10}, "b": {"m": 100}, "c": {}}}
	now := &Node{Time: at.Add(2 * time.Second), Samples: map[string]Sample{
		"a": {"m": 14}, "b": {"m": 6}, "c": {}, "new": {"m": 1000},
	}}
	for _, c := range []struct {
		processes []string
		want      float64
		ok        bool
	}{
		{nil, 5, true}, // 4 of a, and 6 of b since its restart
		{[]string{"a"}, 2, true},
		{[]string{"c"}, 0, false},
		{[]string{"new"}, 0, false},
		{[]string{"none"}, 0, false},
	} {
		if got, ok := now.rate(before, "m", c.processes...); math.Abs(got-c.want) > 1e-9 || ok != c.ok {
			t.Errorf("%q: %v, %v; want %v, %v", c.processes, got, ok, c.want, c.ok)
		}
	}
	if _, ok := before.rate(before, "m"); ok {
		t.Error("there is a rate over no time")
	}
}

func testNode(at time.Time) Node {
	n := Node{
		Time: at, Version: "v1", Placement: "processes",
		Processes: []Process{
			{Name: "up", State: "ready", PID: 7, Uptime: 90 * time.Second, Memory: 3 << 20, Heartbeat: -1},
			{Name: "pleg", State: "backoff", Restarts: 4, Heartbeat: 1500 * time.Millisecond},
		},
		Samples: map[string]Sample{
			"up":      {cpuMetric: float64(at.Unix()%100) / 10},
			"podsync": {"microlet_runtime_calls_waiting": 2, "prober_probe_total": float64(at.Unix()) * 3},
		},
		Faults: []string{"pleg shows no metrics"},
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		n.Pods = append(n.Pods, Pod{Namespace: "shop", Name: name, Status: "Running", Ready: 1, Containers: 1})
	}
	n.Pods[4].Status, n.Pods[4].Ready = "Crash\x1bLoop", 0
	return n
}

// plain is a screen without its colours.
func plain(s string) string {
	return strings.NewReplacer(bold, "", red, "", normal, "").Replace(s)
}

func TestRender(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	before, now := testNode(at), testNode(at.Add(2*time.Second))
	const want = `microlet v1, processes, 7 pods, 12:00:02

SERVICE  STATE    PID  UPTIME  RESTARTS  MEMORY   CPU    HEARTBEAT
up       ready    7    1m30s   0         3.0 MiB  10.0%  -
pleg     backoff  -    0s      4         -        -      1.5s ago

RATES, PER SECOND                        NOW
pod syncs                           -    runtime calls that run                   -
containers started                  -    runtime calls that wait               2.00
probes                           3.00    image pulls that wait                    -
relists                             -    pod statuses to be sent                  -
runtime operations                  -    puts to the bus to be acknowledged       -
calls through the CRI gateway       -    HTTP requests that run                   -
pod statuses sent                   -
Events delivered                    -
pleg shows no metrics

NAMESPACE  POD  READY  STATUS      RESTARTS
shop       e    0/1    Crash�Loop  0
shop       a    1/1    Running     0
shop       b    1/1    Running     0
q ends, the arrows move through the pods`
	got := screen{width: 100, height: 22}.render(&now, &before)
	if plain(got) != want {
		t.Errorf("the screen is\n%s\nwant\n%s", plain(got), want)
	}
	for _, alarm := range []string{"pleg     backoff", "shop       e", "pleg shows"} {
		if !strings.Contains(got, red+alarm) {
			t.Errorf("%q is not red", alarm)
		}
	}
	if first := plain(screen{width: 100, height: 40}.render(&now, nil)); strings.Contains(first, "%") ||
		strings.Count(first, "\n") != 39 || !strings.Contains(first, "shop       g") {
		t.Errorf("the first screen is\n%s", first)
	}
	// A terminal may be of any size.
	for _, size := range []screen{
		{}, {width: 1, height: 1}, {width: 20, height: 5, firstPod: 99}, {width: -1, height: -1},
	} {
		shown := plain(size.render(&now, &before))
		for line := range strings.SplitSeq(shown, "\n") {
			if n := len([]rune(line)); n > max(0, size.width) {
				t.Errorf("%+v: a line has %d columns", size, n)
			}
		}
		if n := strings.Count(shown, "\n") + 1; n > max(1, size.height) {
			t.Errorf("%+v: there are %d lines", size, n)
		}
	}
}

func TestKeys(t *testing.T) {
	p := &program{ctx: t.Context(), ask: func(context.Context) Node { return testNode(time.Now()) }}
	answer := p.Init()()
	p.Update(tea.WindowSizeMsg{Width: 80, Height: 6})
	if _, again := p.Update(answer); again == nil || p.now == nil || p.waiting {
		t.Fatalf("after an answer: %+v", p)
	}
	for _, c := range []struct {
		key  string
		want int
	}{
		{"down", 1}, {"j", 2}, {"up", 1}, {"pgdown", 4}, {"pgdown", 6}, {"down", 6}, {"pgup", 3}, {"home", 0}, {"k", 0},
	} {
		if cmd := p.key(c.key); cmd != nil || p.screen.firstPod != c.want {
			t.Errorf("after %s the first pod is %d, want %d", c.key, p.screen.firstPod, c.want)
		}
	}
	if _, cmd := p.Update(tick{}); cmd == nil || !p.waiting {
		t.Error("a tick asks nothing")
	}
	if _, cmd := p.Update(tick{}); cmd != nil {
		t.Error("it asks while it waits for an answer")
	}
	if cmd := p.key("q"); cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not end it")
	}
	if v := p.View(); !v.AltScreen || !strings.Contains(v.Content, "microlet v1") {
		t.Errorf("the view is %q", v.Content)
	}
}
