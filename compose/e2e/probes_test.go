//go:build !bench

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/proto/role"
)

// TestProbesOutliveTheProbers kills every prober every 3 s. No pod leaves Ready and none is restarted,
// but for those that really turn ill, which are restarted meanwhile, once.
func TestProbesOutliveTheProbers(t *testing.T) {
	Shared.UseMicrolet(t, "--prober-replicas=2")
	s := New(t)
	var pods []*corev1.Pod
	var well, ill []string
	for i := range probedPods {
		pods = append(pods, ProbedPod(fmt.Sprintf("well-%d", i), HTTPProbe))
		well = append(well, pods[i].Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(Patience+time.Duration(probedPods)*2*time.Second, well...)
	w := s.Witness(well...)

	for i, after := range illAfter {
		p := turnsIll(ProbedPod(fmt.Sprintf("ill-%d", i), HTTPProbe), after)
		s.CreatePods(p)
		ill = append(ill, p.Name)
	}
	killed, began := 0, time.Now()
	restarted := func(v record.View) error {
		for _, name := range ill {
			for _, c := range s.ContainerStatuses(v, name) {
				if c.RestartCount == 0 {
					return fmt.Errorf("%s was not restarted", name)
				}
			}
		}
		return nil
	}
	for time.Since(began) < probeKillTime ||
		time.Since(began) < probeKillTime+Patience && restarted(s.Record.View()) != nil {
		killed += killProbers(s)
		select {
		case <-time.After(3 * time.Second):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	took := time.Since(began)
	if err := restarted(s.Record.View()); err != nil {
		t.Fatalf("while the probers were killed for %s: %v", Milliseconds(took), err)
	}
	s.WaitReady(Patience, ill...)
	s.WaitHealthy(t, Patience)
	w.Untouched()

	for _, name := range ill {
		p := s.Record.View().Pod(s.Namespace, name)
		turned, again := said(s, p, 0, turnedIll), said(s, p, 1, Begins)
		took := again.Sub(turned)
		t.Logf("%s was restarted %s after it had turned ill", name, Milliseconds(took))
		if took < (ProbeFailureThreshold-2)*time.Second {
			t.Errorf("%s was restarted %s after it had turned ill: %d probes a second apart cannot have failed", name,
				Milliseconds(took), ProbeFailureThreshold)
		}
		for _, state := range s.Record.History(p.UID) {
			for _, c := range state.Status.ContainerStatuses {
				if c.RestartCount > 1 {
					t.Errorf("%s: restarts %d, it was ill once", name, c.RestartCount)
				}
			}
		}
	}
	t.Logf("%d probers killed in %s beside %d pods that are well", killed, Milliseconds(took), len(well))
}

// killProbers kills every prober that runs, and returns how many there were.
func killProbers(s *Scene) int {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), 10*time.Second)
	defer cancel()
	all, err := s.ProcessStatuses(ctx)
	if err != nil {
		s.T.Fatal(err)
	}
	n := 0
	for name, a := range all {
		if name != role.Prober && !strings.HasPrefix(string(name), string(role.Prober)+".") || a.PID == 0 {
			continue
		}
		if err := syscall.Kill(a.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.T.Fatal(err)
		}
		n++
	}
	return n
}

// said is when a container of a pod's life wrote a line, by the runtime's clock.
func said(s *Scene, p *corev1.Pod, restart int, line string) time.Time {
	s.T.Helper()
	path := filepath.Join(s.PodLogsDir(), fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID), "main",
		fmt.Sprintf("%d.log", restart))
	text, err := os.ReadFile(path)
	if err != nil {
		s.T.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		if parts := strings.SplitN(strings.TrimSpace(l), " ", 4); len(parts) == 4 && parts[3] == line {
			at, err := time.Parse(time.RFC3339Nano, parts[0])
			if err != nil {
				s.T.Fatalf("%s: %v", path, err)
			}
			return at
		}
	}
	s.T.Fatalf("%s: nobody says %q", path, line)
	return time.Time{}
}
