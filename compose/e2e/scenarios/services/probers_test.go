//go:build long

package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

const (
	// sharedPods divide evenly by two and by three.
	sharedPods = 24
	// perPod is how many probes a second each asks for: readiness and liveness.
	perPod = 2
	// shareTolerance is how far a replica may be from its share of the probes.
	shareTolerance = 0.10
	// shareRuns is how often each probe must have run by the replica that has it.
	shareRuns = 10
)

// TestProbersShare has two probers, and then three, share the pods; one is killed and kept from coming
// back, and one is stopped. The watchdog is off: only the others may help.
func TestProbersShare(t *testing.T) {
	for _, replicas := range []int{2, 3} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			scene.Shared.UseMicrolet(t, fmt.Sprintf("--prober-replicas=%d", replicas), scene.WatchdogOff)
			s := scene.New(t)
			w := createShared(s)
			all := make([]int, replicas)
			for i := range all {
				all[i] = i
			}
			victim, others := replicas-1, all[:replicas-1]

			even(s, all...)
			gathered(s, all...)

			had := share(s, victim)
			revive := keepDead(s, victim)
			took := takenOver(s, had, others)
			t.Logf("%d probers, one killed and kept dead: others had probed all of its %d pods after %s", replicas,
				len(had), scene.Milliseconds(took))
			even(s, others...)
			gathered(s, others...)
			t.Logf("the killed prober was killed %d times", revive())
			s.WaitHealthy(t, scene.Patience)

			even(s, all...)
			had = share(s, victim)
			pid := proberPID(s, victim)
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			took = takenOver(s, had, others)
			t.Logf("%d probers, one stopped: others had probed all of its %d pods after %s", replicas, len(had),
				scene.Milliseconds(took))
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			even(s, all...)
			gathered(s, all...)
			w.Untouched()
			w.NodeReady()
		})
	}
}

// families are what a prober says of its probes, by its own socket.
func families(s *scene.Scene, replica int) (map[string]*dto.MetricFamily, error) {
	path := filepath.Join(s.RuntimeDir(), "sock", "prober", "metrics.sock")
	if replica > 0 {
		path = filepath.Join(s.RuntimeDir(), "sock", "prober", fmt.Sprintf("metrics.%d.sock", replica))
	}
	client := &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}},
	}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://prober/metrics")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return parse(answer.Body)
}

func parse(r io.Reader) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(r)
}

// probeTotals are the probes by pod and kind.
func probeTotals(s *scene.Scene, families map[string]*dto.MetricFamily) map[[2]string]float64 {
	totals := map[[2]string]float64{}
	for _, m := range families["prober_probe_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["namespace"] == s.Namespace {
			totals[[2]string{labels["pod"], labels["probe_type"]}] += m.GetCounter().GetValue()
		}
	}
	return totals
}

// share is what a prober probes: pods and kinds, and how often it has.
func share(s *scene.Scene, replica int) map[[2]string]float64 {
	s.T.Helper()
	families, err := families(s, replica)
	if err != nil {
		s.T.Fatal(err)
	}
	return probeTotals(s, families)
}

// createShared creates pods whose probes several probers are to share.
func createShared(s *scene.Scene) *scene.Witness {
	s.T.Helper()
	var pods []*corev1.Pod
	var names []string
	for i := range sharedPods {
		pods = append(pods, scene.ProbedPod(fmt.Sprintf("shared-%d", i), scene.HTTPProbe))
		names = append(names, pods[i].Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(scene.Patience, names...)
	return s.Witness(names...)
}

// even waits until each probe has one prober, and judges that these probers share them evenly and that each runs all
// that it has, which stays its own meanwhile.
func even(s *scene.Scene, replicas ...int) {
	s.T.Helper()
	scene.Await(s.T, scene.Patience, "each probe to be one prober's", func() error {
		sum := 0
		for _, r := range replicas {
			families, err := families(s, r)
			if err != nil {
				return err
			}
			n := len(probeTotals(s, families))
			if n == 0 {
				return fmt.Errorf("prober %d probes nothing", r)
			}
			sum += n
		}
		if sum != sharedPods*perPod {
			return fmt.Errorf("%d probes in all, want %d", sum, sharedPods*perPod)
		}
		return nil
	})
	began, before := time.Now(), map[int]map[[2]string]float64{}
	want := float64(sharedPods*perPod) / float64(len(replicas))
	for _, r := range replicas {
		before[r] = share(s, r)
		if got := float64(len(before[r])); math.Abs(got-want) > shareTolerance*want {
			s.T.Errorf("prober %d of %v has %.0f probes, want %.1f", r, replicas, got, want)
		}
	}
	scene.Await(s.T, scene.Patience, "each prober to run its probes", func() error {
		for _, r := range replicas {
			families, err := families(s, r)
			if err != nil {
				return err
			}
			now := probeTotals(s, families)
			for probe, n := range before[r] {
				if now[probe] < n+shareRuns {
					return fmt.Errorf("prober %d has run %v %.0f times since", r, probe, now[probe]-n)
				}
			}
		}
		return nil
	})
	s.T.Logf("%d probers: each probe, due each second, has run %d times after %s", len(replicas), shareRuns,
		scene.Milliseconds(time.Since(began)))
}

// gathered judges /metrics/probes, as the apiserver fetches it: every family once, every series once,
// and a series of each probe, of the prober that runs it.
func gathered(s *scene.Scene, replicas ...int) {
	s.T.Helper()
	low := map[[2]string]float64{}
	for _, r := range replicas {
		for probe, n := range share(s, r) {
			if low[probe] > 0 {
				s.T.Errorf("%v has series of two probers", probe)
			}
			low[probe] = n
		}
	}
	text, problems, err := s.RunKubectl(nil, "get", "--raw", "/api/v1/nodes/"+s.Node.NodeName()+"/proxy/metrics/probes")
	if err != nil {
		s.T.Fatal(err, problems)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		key := line
		if !strings.HasPrefix(line, "#") {
			key = line[:strings.LastIndexByte(line, ' ')] // without its value
		}
		if seen[key] {
			s.T.Errorf("twice in /metrics/probes: %s", key)
		}
		seen[key] = true
	}
	families, err := parse(strings.NewReader(text))
	if err != nil {
		s.T.Fatalf("/metrics/probes: %v", err)
	}
	got := probeTotals(s, families)
	if len(got) != sharedPods*perPod || len(families["process_start_time_seconds"].GetMetric()) < len(replicas) {
		s.T.Errorf("/metrics/probes shows %d probes by %d probers, want %d by %d",
			len(got), len(families["process_start_time_seconds"].GetMetric()), sharedPods*perPod, len(replicas))
	}
	for probe, n := range got {
		// Between the two readings a few more have run.
		if n < low[probe] || n > low[probe]+10 {
			s.T.Errorf("/metrics/probes shows %g probes %v, their prober of %g shortly before", n, probe, low[probe])
		}
	}
}

// takenOver returns when one of the others has run each of these probes, counted from its call.
func takenOver(s *scene.Scene, had map[[2]string]float64, others []int) time.Duration {
	s.T.Helper()
	began := time.Now()
	if len(had) == 0 {
		s.T.Fatal("there is nothing to take over")
	}
	scene.Await(s.T, scene.Patience, "the others to probe", func() error {
		missing := maps.Clone(had)
		for _, r := range others {
			families, err := families(s, r)
			if err != nil {
				return err
			}
			for probe := range probeTotals(s, families) {
				delete(missing, probe)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d are not probed", len(missing), len(had))
		}
		return nil
	})
	return time.Since(began)
}

// proberPID is the process of a replica; 0 if there is none.
func proberPID(s *scene.Scene, replica int) int {
	children, err := machine.Children(s.PID(role.Up))
	if err != nil {
		return 0
	}
	for _, c := range children {
		a := machine.Arguments(c)
		if len(a) > 1 && a[1] == string(role.Prober) && slices.Contains(a, fmt.Sprintf("--replica=%d", replica)) &&
			machine.Alive(c) {
			return c
		}
	}
	return 0
}

// keepDead kills a prober, and again each time its supervisor has started it, before it can be of use.
// The function that it returns lets it live and reports how often it was killed.
func keepDead(s *scene.Scene, replica int) (revive func() int) {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	kills := 0
	kill := func() {
		if pid := proberPID(s, replica); pid > 0 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
				kills++
			} else if !errors.Is(err, syscall.ESRCH) {
				s.T.Error(err)
			}
		}
	}
	kill()
	if kills == 0 {
		s.T.Fatalf("prober %d does not run", replica)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			kill()
			time.Sleep(20 * time.Millisecond)
		}
	})
	return func() int {
		cancel()
		running.Wait()
		return kills
	}
}
