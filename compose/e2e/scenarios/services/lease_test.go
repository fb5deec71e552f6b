//go:build long

package services

import (
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestLeaseEndsWhenPodsyncHangs: the Lease says that the node works, so it is renewed no longer when
// podsync has hung for a minute, and again as soon as its loop goes on.
func TestLeaseEndsWhenPodsyncHangs(t *testing.T) {
	const (
		earliest = 45 * time.Second // what TestStops shows to be borne
		latest   = 80 * time.Second // a minute of proof, the age of the last heartbeat, one renewal
		hang     = latest + 15*time.Second
	)
	withoutWatchdog(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	pid := s.MustPID(t, role.Podsync)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	stopped := time.Now()
	time.Sleep(hang)
	last := lastRenewal(s, w).Sub(stopped)
	t.Logf("podsync hung for %s: the Lease was renewed for %s", hang, scene.Milliseconds(last))
	if last < earliest || last > latest {
		t.Errorf("the Lease was renewed for %s of the hang, not for %s to %s", scene.Milliseconds(last), earliest, latest)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	goes := time.Now()
	scene.Await(t, scene.Patience, "the Lease's renewal", func() error { return s.LeaseRenewedSince(goes) })
	s.CreatePods(scene.PausePod("after"))
	s.WaitReady(scene.Patience, "after")
	for _, p := range w.Pods {
		if now := s.Record.View().Pod(s.Namespace, p.Name); now == nil ||
			now.Status.ContainerStatuses[0].ContainerID != p.Status.ContainerStatuses[0].ContainerID {
			t.Errorf("the container of %s was touched", p.Name)
		}
	}
}

// lastRenewal is when the Lease was renewed last.
func lastRenewal(s *scene.Scene, w *scene.Witness) time.Time {
	s.T.Helper()
	s.SyncRecord()
	last := w.Lease.Spec.RenewTime.Time
	for _, e := range s.Record.Since(w.Mark) {
		if l, ok := e.Object.(*coordinationv1.Lease); ok && !e.Deleted {
			last = l.Spec.RenewTime.Time
		}
	}
	return last
}
