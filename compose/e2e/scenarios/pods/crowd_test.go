package pods

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

func TestCrowd(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	bigCrowd(t)
}

// bigCrowd: many pods of all kinds at once all run, are deleted at once, and leave nothing.
func bigCrowd(t *testing.T) {
	s := scene.New(t)
	pods, crashing := scene.Crowd(crowdPods)
	begin := time.Now()
	mark := s.Record.Mark()
	s.CreatePods(pods...)
	s.Wait(scene.Patience+time.Duration(crowdPods)*2*time.Second, "all pods to run", func(v record.View) error {
		var missing []string
		for _, p := range pods {
			if now := v.Pod(s.Namespace, p.Name); now == nil || !scene.HasRun(now, crashing[p.Name]) {
				missing = append(missing, p.Name+" ("+scene.Describe(now)+")")
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d do not run: %s", len(missing), len(pods), strings.Join(missing, ", "))
		}
		return nil
	})
	took := time.Since(begin)
	s.SyncRecord()
	var starts []time.Duration
	for uid, times := range record.PodTimes(s.Record.Since(mark)) {
		if !times.Created.IsZero() && !times.Ready.IsZero() && !crashing[nameOf(s, uid)] {
			starts = append(starts, times.Ready.Sub(times.Created))
		}
	}
	t.Logf("%d pods of %d kinds: all run after %s; created to Ready: p50 %s, p90 %s", len(pods), len(scene.Kinds),
		scene.Milliseconds(took),
		scene.Milliseconds(record.Percentile(starts, 0.5)), scene.Milliseconds(record.Percentile(starts, 0.9)))
	checkKinds(t, s)

	now := s.Record.View().Pods(s.Namespace)
	s.LeavesTraces(now)
	begin = time.Now()
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	s.DeletePods(names...)
	s.Wait(scene.Patience, "the pods' end", s.AreGone(names...))
	t.Logf("%d pods deleted: gone after %s", len(pods), scene.Milliseconds(time.Since(begin)))
	s.LeavesNothing(now)
}

// checkKinds judges what is special to a kind.
func checkKinds(t *testing.T, s *scene.Scene) {
	t.Helper()
	for _, p := range s.Record.View().Pods(s.Namespace) {
		name, _, _ := strings.Cut(p.Name, "-")
		switch name {
		case "hostnet":
			if p.Status.PodIP != s.NodeIP() {
				t.Errorf("%s: pod IP %s, want the node's %s", p.Name, p.Status.PodIP, s.NodeIP())
			}
		case "limits":
			if p.Status.QOSClass != corev1.PodQOSBurstable {
				t.Errorf("%s: QoS class %s", p.Name, p.Status.QOSClass)
			}
			checkLimits(t, s, p)
		case "several":
			if len(p.Status.ContainerStatuses) != 3 {
				t.Errorf("%s: %d container statuses", p.Name, len(p.Status.ContainerStatuses))
			}
		}
	}
}

// nameOf is the name of a pod that is there; empty of others.
func nameOf(s *scene.Scene, uid types.UID) string {
	for _, p := range s.Record.View().Pods(s.Namespace) {
		if p.UID == uid {
			return p.Name
		}
	}
	return ""
}
