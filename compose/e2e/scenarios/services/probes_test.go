package services

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
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// turnedIll is what a pod of turnsIll writes when it does.
const turnedIll = "turned ill"

// turnsIll has a probed pod turn ill some time after its start, but not when it was restarted for that.
func turnsIll(p *corev1.Pod, after time.Duration) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{
		Name:         "memory",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	}}
	c := &p.Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}}
	script := &c.Command[len(c.Command)-1]
	ill := fmt.Sprintf("test -e /memory/ill || { sleep %d; touch /memory/ill; rm /tmp/www/ok; echo %s; }; ",
		int(after.Seconds()), turnedIll)
	*script = strings.TrimSuffix(*script, scene.Forever) + ill + scene.Forever
	return p
}

// TestProbesOutliveTheProbers kills every prober every 3 s. No pod leaves Ready and none is restarted,
// but for those that really turn ill, which are restarted meanwhile, once.
func TestProbesOutliveTheProbers(t *testing.T) {
	scene.Shared.UseMicrolet(t, "--prober-replicas=2")
	s := scene.New(t)
	var pods []*corev1.Pod
	var well, ill []string
	for i := range probedPods {
		pods = append(pods, scene.ProbedPod(fmt.Sprintf("well-%d", i), scene.HTTPProbe))
		well = append(well, pods[i].Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(scene.Patience+time.Duration(probedPods)*2*time.Second, well...)
	w := s.Witness(well...)

	for i, after := range illAfter {
		p := turnsIll(scene.ProbedPod(fmt.Sprintf("ill-%d", i), scene.HTTPProbe), after)
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
		time.Since(began) < probeKillTime+scene.Patience && restarted(s.Record.View()) != nil {
		killed += killProbers(s)
		select {
		case <-time.After(3 * time.Second):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	took := time.Since(began)
	if err := restarted(s.Record.View()); err != nil {
		t.Fatalf("while the probers were killed for %s: %v", scene.Milliseconds(took), err)
	}
	s.WaitReady(scene.Patience, ill...)
	s.WaitHealthy(t, scene.Patience)
	w.Untouched()

	for _, name := range ill {
		p := s.Record.View().Pod(s.Namespace, name)
		turned, again := said(s, p, 0, turnedIll), said(s, p, 1, scene.Begins)
		took := again.Sub(turned)
		t.Logf("%s was restarted %s after it had turned ill", name, scene.Milliseconds(took))
		if took < (scene.ProbeFailureThreshold-2)*time.Second {
			t.Errorf("%s was restarted %s after it had turned ill: %d probes a second apart cannot have failed", name,
				scene.Milliseconds(took), scene.ProbeFailureThreshold)
		}
		for _, state := range s.Record.History(p.UID) {
			for _, c := range state.Status.ContainerStatuses {
				if c.RestartCount > 1 {
					t.Errorf("%s: restarts %d, it was ill once", name, c.RestartCount)
				}
			}
		}
	}
	t.Logf("%d probers killed in %s beside %d pods that are well", killed, scene.Milliseconds(took), len(well))
}

// killProbers kills every prober that runs, and returns how many there were.
func killProbers(s *scene.Scene) int {
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
func said(s *scene.Scene, p *corev1.Pod, restart int, line string) time.Time {
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
	s.T.Fatalf("%s: no log says %q", path, line)
	return time.Time{}
}
