package scrape

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// node serves each role's text at its socket; a replica's name has its number behind a dot.
func node(t *testing.T, texts map[role.Role]string, healthy map[role.Role]error) *Services {
	t.Helper()
	dir := t.TempDir()
	for r, text := range texts {
		l, err := net.Listen("unix", filepath.Join(dir, string(r)+".sock"))
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
	return New(func(r role.Role) string { return filepath.Join(dir, string(r)+".sock") }, unixgrpc.Rules{},
		slog.New(slog.DiscardHandler))
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

// joined demands what the services' metrics are together.
func joined(t *testing.T, s *Services, filter Filter, want string) {
	t.Helper()
	var out strings.Builder
	if err := s.Write(t.Context(), &out, filter); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("%s:\n%s", filter.name, diff)
	}
}

func TestMetricsAreJoined(t *testing.T) {
	s := node(t,
		map[role.Role]string{role.Podsync: podsyncText, role.PLEG: plegText, role.Prober: proberText,
			role.NodeStatus: "this is no metric {"}, nil)
	joined(t, s, Everything, `# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines{service="podsync"} 7
go_goroutines{service="pleg"} 5
# HELP kubelet_running_pods Pods.
# TYPE kubelet_running_pods gauge
kubelet_running_pods 99
# HELP microlet_build_info Build.
# TYPE microlet_build_info gauge
microlet_build_info{service="podsync"} 1
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds{service="prober"} 12
`)
	joined(t, s, Probes, `# HELP prober_probe_total Probes.
# TYPE prober_probe_total counter
prober_probe_total{result="successful"} 4
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds{service="prober"} 12
`)
}

const secondText = `# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines 6
# HELP microlet_build_info Build.
# TYPE microlet_build_info gauge
microlet_build_info{service="prober"} 1
# HELP prober_probe_total Probes.
# TYPE prober_probe_total counter
prober_probe_total{pod="b",result="successful"} 8
prober_probe_total{pod="moved",result="successful"} 2
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 13
`

// The pods' series come from the prober that probes them. Each family is reported once, with each series once.
func TestReplicasAreJoined(t *testing.T) {
	const firstText = `# HELP prober_probe_total Probes.
# TYPE prober_probe_total counter
prober_probe_total{pod="a",result="failed"} 1
prober_probe_total{pod="a",result="successful"} 4
prober_probe_total{pod="moved",result="successful"} 70
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 12
`
	s := node(t,
		map[role.Role]string{role.Prober: firstText, role.Prober + ".1": secondText, role.Prober + ".2": "it is ill {"},
		nil)
	joined(t, s, Probes, `# HELP prober_probe_total Probes.
# TYPE prober_probe_total counter
prober_probe_total{pod="a",result="failed"} 1
prober_probe_total{pod="a",result="successful"} 4
prober_probe_total{pod="moved",result="successful"} 70
prober_probe_total{pod="b",result="successful"} 8
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds{service="prober"} 12
process_start_time_seconds{service="prober",replica="1"} 13
`)
	joined(t, s, Everything, `# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines{service="prober",replica="1"} 6
# HELP microlet_build_info Build.
# TYPE microlet_build_info gauge
microlet_build_info{service="prober",replica="1"} 1
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds{service="prober"} 12
process_start_time_seconds{service="prober",replica="1"} 13
`)
}

func TestHealthIsOfAllReplicas(t *testing.T) {
	s := node(t, map[role.Role]string{role.Prober: "", role.Prober + ".1": ""},
		map[role.Role]error{role.Prober + ".1": errors.New("it hangs")})
	if err := s.Healthy(t.Context(), role.Prober); err == nil ||
		!strings.Contains(err.Error(), "prober.1 says 503: it hangs") {
		t.Errorf("the second replica hangs: %v", err)
	}
}

func TestHealth(t *testing.T) {
	s := node(t, map[role.Role]string{role.Podsync: "", role.PLEG: ""},
		map[role.Role]error{role.PLEG: errors.New("it hangs")})
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

// TestMoreReplicasThanCanBe: a service fills its folder with sockets and says as much on each as it may.
func TestMoreReplicasThanCanBe(t *testing.T) {
	const there = 40
	dir := t.TempDir()
	text := []byte("# TYPE a gauge\na 1\n" + strings.Repeat("#\n", 500))
	var asked, now, most, open atomic.Int64
	for i := range there {
		path := filepath.Join(dir, fmt.Sprintf("pleg.%d.sock", i+1))
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(20 * time.Millisecond) // so that all that are asked at one time are here
				_, _ = w.Write(text)
				now.Add(-1)
			}),
			ConnState: func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					open.Add(1)
				case http.StateClosed:
					open.Add(-1)
				}
			},
		}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	s := New(func(r role.Role) string { return filepath.Join(dir, string(r)+".sock") }, unixgrpc.Rules{},
		slog.New(slog.DiscardHandler))
	s.limit.bytes = int64(3*len(text) + 1)
	var out strings.Builder
	if err := s.Write(t.Context(), &out, Everything); err != nil {
		t.Fatal(err)
	}
	if asked.Load() > service.MaxReplicas || most.Load() > atOnce {
		t.Errorf("%d are asked, %d of them at one time", asked.Load(), most.Load())
	}
	if got := strings.Count(out.String(), "a{"); got != 3 {
		t.Errorf("of the replicas' answers %d are taken", got)
	}
	// They go, and nothing of them stays.
	for i := range there {
		if err := os.Remove(filepath.Join(dir, fmt.Sprintf("pleg.%d.sock", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	if s.Exists(role.PLEG) {
		t.Error("pleg is still there")
	}
	s.mu.Lock()
	clients := len(s.client)
	s.mu.Unlock()
	if clients != 0 {
		t.Errorf("%d clients of replicas that are gone are kept", clients)
	}
	proctest.Await(t, 10*time.Second, "the end of the connections to replicas that are gone",
		func() bool { return open.Load() == 0 })
}

// A process of another user on a service's socket is asked nothing.
func TestAnImpostorIsAskedNothing(t *testing.T) {
	s := node(t, map[role.Role]string{role.PLEG: plegText}, nil)
	s.peers.Roles = func(int) []role.Role { return nil } // this process is a stranger
	if err := s.Healthy(t.Context(), role.PLEG); err == nil || !strings.Contains(err.Error(), "is not pleg") {
		t.Errorf("health of an impostor: %v", err)
	}
	joined(t, s, Everything, "")
}
