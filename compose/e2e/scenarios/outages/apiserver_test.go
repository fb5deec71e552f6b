package outages

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestAPIServerDown stops the API server. No container is touched, and what came up meanwhile is
// delivered when it is back.
func TestAPIServerDown(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	s.CreatePods(scene.ScriptPod("restarts", scene.Forever))
	s.WaitReady(scene.Patience, "restarts")
	stop := time.Now()
	if err := s.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	down := s.Record.Mark() // nothing is written until the API server is back
	s.EndContainer("restarts")
	ended := time.Now()
	scene.Await(t, scene.Patience, "the container's restart without an API server",
		func() error { return s.RunsAttempt("restarts", 1) })
	again := time.Now()
	t.Logf("a container that ended while the API server was down runs again after %s",
		scene.Milliseconds(again.Sub(ended)))
	time.Sleep(time.Until(stop.Add(scene.Outage)))
	if err := s.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	s.Wait(scene.Patience, "the renewal of the Lease", func(record.View) error { return s.LeaseRenewals(down, 1) })
	t.Logf("the Lease was renewed %s after the API server was ready again", scene.Milliseconds(time.Since(back)))
	s.Wait(scene.Patience, "the status that came up meanwhile", func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, "restarts") {
			if c.RestartCount == 1 && c.State.Running != nil && c.State.Running.StartedAt.Before(timeOf(back)) {
				return nil
			}
		}
		return fmt.Errorf("status is %+v", s.ContainerStatuses(v, "restarts"))
	})
	s.Wait(scene.Patience, "the event that came up meanwhile", func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, "restarts") {
			at := lastTime(e)
			seen = append(seen, fmt.Sprintf("%s at %s", e.Reason, at))
			if e.Reason == "Started" && at.After(ended.Add(-time.Second)) && at.Before(back) {
				return nil
			}
		}
		return fmt.Errorf("no event Started of the time without an API server: %v", seen)
	})
	t.Logf("status and event of that time have been delivered %s after the API server was ready again",
		scene.Milliseconds(time.Since(back)))
	after := scene.PausePod("after")
	after.Spec.NodeName = s.NodeName() // the scheduler needs a while to come back by itself
	s.CreatePods(after)
	s.WaitReady(scene.Patience, "after")
	t.Logf("a pod bound to the node then is Ready after %s", scene.Milliseconds(s.StartTime("after")))
	// The node controller may have lost patience meanwhile and marked the pods of the node: that is
	// not the node agent's doing. Which containers run is.
	s.SyncRecord()
	for _, e := range s.Record.Since(w.Mark) {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || !strings.HasPrefix(p.Name, "steady-") || p.Namespace != s.Namespace {
			continue
		}
		was := w.Pods[slices.IndexFunc(w.Pods, func(q *corev1.Pod) bool { return q.UID == p.UID })]
		if fmt.Sprint(record.Containers(p)) != fmt.Sprint(record.Containers(was)) || e.Deleted {
			t.Errorf("%s was touched: containers were %v and are %v, deleted %t", p.Name, record.Containers(was),
				record.Containers(p), e.Deleted)
		}
	}
	t.Logf("changes after which the node was not Ready, by the node controller's word: %d",
		len(record.NodeReady(s.Record.Since(w.Mark))))
}

// lastTime is when an event happened last.
func lastTime(e *corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if e.EventTime.After(last) {
		last = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	return last
}

func timeOf(t time.Time) *metav1.Time { return &metav1.Time{Time: t} }
