package scrape

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/proto/role"
)

// node serves each role's text at its socket.
func node(t *testing.T, texts map[role.Role]string, healthy map[role.Role]error) *Services {
	t.Helper()
	dir := t.TempDir()
	socket := func(r role.Role) string { return filepath.Join(dir, string(r)) }
	for r, text := range texts {
		l, err := net.Listen("unix", socket(r))
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
		mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
			if err := healthy[r]; err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
		mux.HandleFunc("PUT /debug/flags/v", func(http.ResponseWriter, *http.Request) {})
		s := &http.Server{Handler: mux}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return New(socket, slog.New(slog.DiscardHandler))
}

const (
	podsyncText = `# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines 7
# HELP kubelet_running_pods Pods.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 3
# HELP microlet_build_info Build.
# TYPE microlet_build_info gauge
microlet_build_info{service="podsync"} 1
`
	plegText = `# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines 5
# HELP kubelet_running_pods Pods.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 99
`
	proberText = `# HELP prober_probe_total Probes.
# TYPE prober_probe_total counter
prober_probe_total{result="successful"} 4
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 12
`
)

func TestMetricsAreJoined(t *testing.T) {
	s := node(t, map[role.Role]string{role.Podsync: podsyncText, role.PLEG: plegText, role.Prober: proberText, role.NodeStatus: "this is no metric {"}, nil)
	for _, test := range []struct {
		filter Filter
		want   string
	}{
		{Everything, `# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines{service="podsync"} 7
go_goroutines{service="pleg"} 5
# HELP kubelet_running_pods Pods.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 3
# HELP microlet_build_info Build.
# TYPE microlet_build_info gauge
microlet_build_info{service="podsync"} 1
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds{service="prober"} 12
`},
		{Probes, `# HELP prober_probe_total Probes.
# TYPE prober_probe_total counter
prober_probe_total{result="successful"} 4
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds{service="prober"} 12
`},
	} {
		var out strings.Builder
		if err := s.Write(t.Context(), &out, test.filter); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, out.String()); diff != "" {
			t.Errorf("%s:\n%s", test.filter.name, diff)
		}
	}
}

func TestHealth(t *testing.T) {
	s := node(t, map[role.Role]string{role.Podsync: "", role.PLEG: ""}, map[role.Role]error{role.PLEG: errors.New("it hangs")})
	if err := s.Healthy(t.Context(), role.Podsync); err != nil {
		t.Error(err)
	}
	if err := s.Healthy(t.Context(), role.PLEG); err == nil || !strings.Contains(err.Error(), "it hangs") {
		t.Errorf("a service that hangs: %v", err)
	}
	if err := s.Healthy(t.Context(), role.Stats); err == nil || s.Exists(role.Stats) {
		t.Errorf("a service that is not there: %v", err)
	}
	if err := s.SetVerbosity(t.Context(), 4); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Healthy(ctx, role.Podsync); err == nil {
		t.Error("who does not wait gets an answer")
	}
}
