package scrape

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

// A service gives figures of its own alone, whatever it says that they are, and hides none of another.
func TestNoServiceGivesAnothersMetrics(t *testing.T) {
	const (
		busText = `# TYPE go_goroutines counter
go_goroutines{service="podsync"} 1000
# TYPE kubelet_runtime_operations_errors_total gauge
kubelet_runtime_operations_errors_total 0
# TYPE microlet_bus_connections gauge
microlet_bus_connections 9
# TYPE microlet_podsync_stuck gauge
microlet_podsync_stuck{service="podsync"} 0
# TYPE microlet_supervisor_restarts_total counter
microlet_supervisor_restarts_total{service="podsync"} 1000
`
		podsyncText = `# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines 7
# HELP kubelet_runtime_operations_errors_total Errors.
# TYPE kubelet_runtime_operations_errors_total counter
kubelet_runtime_operations_errors_total 17
# TYPE microlet_podsync_stuck gauge
microlet_podsync_stuck 1
`
		plegText = `# TYPE process_start_time_seconds gauge
process_start_time_seconds{replica="3",service="nodeapi"} 1
# TYPE prober_probe_total counter
prober_probe_total{pod="a"} 5
`
		upText = `# TYPE microlet_supervisor_restarts_total counter
microlet_supervisor_restarts_total{service="podsync"} 2
`
	)
	s := node(t, map[role.Role]string{
		role.Bus: busText, role.Podsync: podsyncText, role.PLEG: plegText, role.Up: upText,
		role.Prober + ".1": "# TYPE a gauge\na{replica=\"0\",service=\"pleg\"} 1\n",
	}, nil)
	var log bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&lockedBuffer{b: &log}, nil))
	joined(t, s, Everything, `# TYPE a gauge
a{service="prober",replica="1"} 1
# TYPE go_goroutines untyped
go_goroutines{service="bus"} 1000
go_goroutines{service="podsync"} 7
# HELP kubelet_runtime_operations_errors_total Errors.
# TYPE kubelet_runtime_operations_errors_total counter
kubelet_runtime_operations_errors_total 17
# TYPE microlet_bus_connections gauge
microlet_bus_connections{service="bus"} 9
# TYPE microlet_podsync_stuck gauge
microlet_podsync_stuck{service="podsync"} 1
# TYPE microlet_supervisor_restarts_total counter
microlet_supervisor_restarts_total{service="podsync"} 2
# TYPE process_start_time_seconds gauge
process_start_time_seconds{service="pleg"} 1
`)
	joined(t, s, Probes, "")
	if !strings.Contains(log.String(), "metrics of another service") {
		t.Errorf("the log does not say that metrics were left out: %s", &log)
	}
}

// A name that only newer readers of the format know would keep an older one from all metrics.
func TestANameThatOlderReadersDoNotKnow(t *testing.T) {
	s := node(t, map[role.Role]string{role.Bus: "{\"a b\"} 1\n", role.PLEG: "# TYPE a gauge\na 1\n"}, nil)
	joined(t, s, Everything, "# TYPE a gauge\na{service=\"pleg\"} 1\n")
}

// What a service says takes a bounded amount of memory, which is not that of its text alone.
func TestServicesThatSayTooMuch(t *testing.T) {
	const fits = "# TYPE a gauge\na 1\n"
	for name, text := range map[string]string{
		"lines":  strings.Repeat("#\n", int(most.lines)),
		"labels": strings.Repeat(`a{b="",c="",d="",e="",f=""} 1`+"\n", int(most.labels)/5+1),
		"line":   "a{" + strings.Repeat(`b="",`, maxLineLabels+1) + "} 1\n",
		"bytes":  strings.Repeat("#", int(most.bytes)),
	} {
		t.Run(name, func(t *testing.T) {
			s := node(t, map[role.Role]string{role.Bus: fits + text, role.PLEG: fits}, nil)
			joined(t, s, Everything, "# TYPE a gauge\na{service=\"pleg\"} 1\n")
		})
	}
	// The replicas of a service have one bound together.
	half := fits + strings.Repeat("#\n", int(most.lines)/2)
	s := node(t, map[role.Role]string{role.Prober: half, role.Prober + ".1": half, role.PLEG: fits}, nil)
	var out strings.Builder
	if err := s.Write(t.Context(), &out, Everything); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "prober"); got != 1 || !strings.Contains(out.String(), "pleg") {
		t.Errorf("%d of two probers that together say too much are taken:\n%s", got, &out)
	}
}

// Of the headers of an answer no more is read than any service has.
func TestAnswersWithManyHeaders(t *testing.T) {
	const fits = "# TYPE a gauge\na 1\n"
	s := node(t, map[role.Role]string{role.PLEG: fits}, nil)
	l, err := net.Listen("unix", s.socket(role.Bus))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 2 * maxHeaders / len("X-00000: \r\n") {
			w.Header().Set(fmt.Sprintf("X-%05d", i), "")
		}
		fmt.Fprint(w, fits)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	joined(t, s, Everything, "# TYPE a gauge\na{service=\"pleg\"} 1\n")
}

// A prober of 500 pods, each with two containers with three probes, is within the bounds.
func TestTheProbesOfManyPodsFit(t *testing.T) {
	const probes, buckets = 500 * 2 * 3, 12
	var b strings.Builder
	b.WriteString("# TYPE prober_probe_duration_seconds histogram\n")
	for i := range probes {
		labels := `probe_type="Readiness",container="container",pod="deployment-with-a-name-` + strconv.Itoa(i) +
			`-5d8f7c9b4d-x2x4z",namespace="some-namespace"`
		for le := range buckets {
			b.WriteString("prober_probe_duration_seconds_bucket{" + labels + `,le="` + strconv.Itoa(le) + "\"} 1\n")
		}
		b.WriteString("prober_probe_duration_seconds_bucket{" + labels + ",le=\"+Inf\"} 1\n")
		b.WriteString("prober_probe_duration_seconds_sum{" + labels + "} 1\nprober_probe_duration_seconds_count{" + labels +
			"} 1\n")
	}
	b.WriteString("# TYPE prober_probe_total counter\n")
	for i := range probes {
		for _, result := range []string{"successful", "failed", "unknown"} {
			b.WriteString(`prober_probe_total{probe_type="Readiness",result="` + result + `",container="container",pod="p-` +
				strconv.Itoa(i) + "\",namespace=\"some-namespace\",pod_uid=\"2c1a1e5e-0000-4000-8000-000000000000\"} 1\n")
		}
	}
	said, err := amountOf([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	s := node(t, map[role.Role]string{role.Prober: b.String()}, nil)
	var out strings.Builder
	if err := s.Write(t.Context(), &out, Probes); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "\n"); got < probes*(buckets+6) {
		t.Errorf("of %+v, of which %+v may be said, %d lines are taken", said, most, got)
	}
}

// docs/metrics.md is made of the services' sources. Each family of one service is that service's to give.
func TestOwnersAreThoseOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	section, families := "", 0
	line := regexp.MustCompile("^## (.+)$|^\\| `([a-z_]+)` ")
	for text := range strings.Lines(string(page)) {
		m := line.FindStringSubmatch(strings.TrimSpace(text))
		switch {
		case m == nil:
		case m[1] == "microlet":
			section = string(role.Up)
		case m[1] != "":
			section = m[1]
		default:
			families++
			of, owned, named := owner(m[2])
			if owned && string(of) != section || !owned && !named {
				t.Errorf("%s is defined by %s, and only %s may give it", m[2], section, of)
			}
			if strings.HasPrefix(m[2], "kubelet_") && !owned {
				t.Errorf("anyone may give %s", m[2])
			}
		}
	}
	if families < 100 {
		t.Errorf("the page has %d families", families)
	}
}

// lockedBuffer is a log of several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  *bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
