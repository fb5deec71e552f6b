//go:build !bench

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/proto/role"
)

// probeFailures is the probes' threshold; they run each second.
const probeFailures = 3

// probed is a pod whose server is asked each second whether it is ready and whether it lives. If
// illAfter is not 0, the server of its first container turns ill then.
func probed(name string, illAfter time.Duration) *corev1.Pod {
	script := "mkdir -p /tmp/www; echo ok > /tmp/www/ok; httpd -p 8080 -h /tmp/www; "
	if illAfter > 0 {
		script += fmt.Sprintf("sleep %d; rm /tmp/www/ok; ", int(illAfter.Seconds()))
	}
	p := scripted(name, script+forever)
	probe := func() *corev1.Probe {
		return &corev1.Probe{
			PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: probeFailures,
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromInt32(8080)}},
		}
	}
	c := &p.Spec.Containers[0]
	c.ReadinessProbe, c.LivenessProbe = probe(), probe()
	c.LivenessProbe.InitialDelaySeconds = 2 // the server is up by then
	return p
}

// TestProbesOutliveTheProbers kills every prober every 3 s. No pod leaves Ready and none is restarted,
// but for the one that really turns ill, which is restarted in its time.
func TestProbesOutliveTheProbers(t *testing.T) {
	shared.use(t, "--prober-replicas=2")
	s := newScene(t)
	var pods []*corev1.Pod
	var names []string
	for i := range probedPods {
		pods = append(pods, probed(fmt.Sprintf("well-%d", i), 0))
		names = append(names, pods[i].Name)
	}
	s.create(pods...)
	s.ready(patience+time.Duration(probedPods)*2*time.Second, names...)
	mark := s.record.Mark()

	const illAfter = 8 * time.Second
	s.create(probed("ill", illAfter))
	killed := 0
	for end := time.Now().Add(probeKillTime); time.Now().Before(end); {
		killed += s.killProbers()
		select {
		case <-time.After(3 * time.Second):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	s.wait(time.Minute, "the pod that turned ill to be restarted", func(v record.View) error {
		for _, c := range s.statuses(v, "ill") {
			if c.RestartCount > 0 && c.LastTerminationState.Terminated != nil {
				return nil
			}
		}
		return errors.New("it was not")
	})
	s.waitHealthy(t, patience)
	s.sync()

	ended := s.firstEnd(mark, "ill")
	// Times in a status are whole seconds.
	took, limit := ended.FinishedAt.Sub(ended.StartedAt.Time)-illAfter, (probeFailures+3+1)*time.Second
	t.Logf("%d probers killed in %s beside %d pods; the pod that turned ill was ended %s later", killed, probeKillTime, len(pods), took)
	if took < (probeFailures-2)*time.Second || took > limit {
		t.Errorf("the pod that turned ill was ended %s later, want %d s to %s", took, probeFailures-2, limit)
	}
	for _, e := range s.record.Since(mark) {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || p.Namespace != s.ns || !strings.HasPrefix(p.Name, "well-") {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if !c.Ready || c.RestartCount != 0 {
				t.Errorf("%s of %s: ready %v, restarts %d", c.Name, p.Name, c.Ready, c.RestartCount)
			}
		}
	}
}

// killProbers kills every prober that runs, and returns how many there were.
func (s *scene) killProbers() int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	all, err := s.status(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	n := 0
	for name, a := range all {
		if name != role.Prober && !strings.HasPrefix(string(name), string(role.Prober)+".") || a.PID == 0 {
			continue
		}
		if err := syscall.Kill(a.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.t.Fatal(err)
		}
		n++
	}
	return n
}

// firstEnd is how the first container of a pod ended, as the status told it.
func (s *scene) firstEnd(mark record.Mark, name string) *corev1.ContainerStateTerminated {
	s.t.Helper()
	for _, e := range s.record.Since(mark) {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || p.Namespace != s.ns || p.Name != name {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Terminated != nil {
				return c.State.Terminated
			}
			if c.LastTerminationState.Terminated != nil {
				return c.LastTerminationState.Terminated
			}
		}
	}
	s.t.Fatalf("%s never ended", name)
	return nil
}
