//go:build !bench

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/proto/role"
)

const (
	// MaxLeaseAge is how old the node's Lease may ever be while the API server is there: its own duration, after which
	// others may take the node for lost. It is renewed every 10 s.
	MaxLeaseAge = 40 * time.Second
)

// Processes is every process of the node agent.
var Processes = append(slices.Clone(Services), role.Up)

// TestKills kills each process, one at a time and then all at once. No container notices.
func TestKills(t *testing.T) {
	Shared.UseMicrolet(t)
	s := New(t)
	w := s.CreateSteadyPods()
	var table strings.Builder
	for _, r := range Processes {
		var starts []string
		for i := range kills {
			starts = append(starts, s.KillDuringStart(fmt.Sprintf("mid-%s-%d", r, i), r))
		}
		fmt.Fprintf(&table, "%-12s %s\n", r, strings.Join(starts, ", "))
	}
	var starts []string
	for i := range kills {
		starts = append(starts, s.KillDuringStart(fmt.Sprintf("mid-all-%d", i), Processes...))
	}
	fmt.Fprintf(&table, "%-12s %s\n", "all at once", strings.Join(starts, ", "))
	age := w.LeaseAge()
	t.Logf("%d pods steady; SIGKILL of …: a pod created at that moment is Ready after …\n%sgreatest age of the Lease: %s", len(w.Pods), table.String(), Milliseconds(age))
	w.Untouched()
	w.NodeReady()
	if age > MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, MaxLeaseAge)
	}
}

// KillDuringStart kills services and creates a pod at that moment, which runs. All services are back when it
// returns, by other processes.
func (s *Scene) KillDuringStart(name string, roles ...role.Role) string {
	s.T.Helper()
	s.WaitHealthy(s.T, Patience)
	before := map[role.Role]int{}
	for _, r := range roles {
		before[r] = s.MustPID(s.T, r)
	}
	s.Signal(s.T, syscall.SIGKILL, roles...)
	s.CreatePods(PausePod(name))
	s.WaitReady(Patience, name)
	s.WaitHealthy(s.T, Patience)
	for _, r := range roles {
		if s.PID(r) == before[r] {
			s.T.Errorf("%s was killed and has the same pid %d", r, before[r])
		}
	}
	s.DeletePods(name)
	return Milliseconds(s.StartTime(name)).String()
}

// TestContainerdRestart restarts the runtime. No container notices, and pods start as before.
func TestContainerdRestart(t *testing.T) {
	Shared.UseMicrolet(t)
	s := New(t)
	w := s.CreateSteadyPods()
	for i := range kills {
		name := fmt.Sprintf("mid-%d", i)
		s.CreatePods(PausePod(name))
		if err := s.RestartContainerd(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.WaitReady(Patience, name)
		s.DeletePods(name)
		t.Logf("a pod created as containerd stopped is Ready after %s", Milliseconds(s.StartTime(name)))
	}
	w.Untouched()
	w.NodeReady()
	if age := w.LeaseAge(); age > MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, MaxLeaseAge)
	}
}

// TestBusDown keeps the bus down: whatever process of it is started is killed at once. Everything
// but Events goes on meanwhile.
func TestBusDown(t *testing.T) {
	Shared.UseMicrolet(t)
	s := New(t)
	w := s.CreateSteadyPods()
	s.CreatePods(ScriptPod("restarts", Forever), PausePod("goes"))
	s.WaitReady(Patience, "restarts", "goes")
	release := s.HoldDown(role.Bus)
	time.Sleep(time.Second) // it is down and the others have noticed
	begin, down := time.Now(), s.Record.Mark()
	s.CreatePods(PausePod("mid"))
	s.DeletePods("goes")
	s.EndContainer("restarts")
	// The bus is down until all of this has happened.
	s.WaitReady(Patience, "mid")
	s.Wait(Patience, "the end of a pod while the bus is down", s.AreGone("goes"))
	s.Wait(Patience, "a container's restart while the bus is down", s.Restarted("restarts", 1))
	t.Logf("bus down: a pod is Ready after %s; all three things done after %s", Milliseconds(s.StartTime("mid")),
		Milliseconds(time.Since(begin)))
	s.Wait(Patience, "a second renewal of the Lease while the bus is down",
		func(record.View) error { return s.LeaseRenewals(down, 2) })
	time.Sleep(time.Until(begin.Add(Outage - time.Second)))
	release()
	s.WaitHealthy(t, Patience)
	s.Wait(Patience, "the event of a start while the bus was down", s.HasEvent("mid", "Started"))
	w.Untouched()
	w.NodeReady()
	if age := w.LeaseAge(); age > MaxLeaseAge {
		t.Errorf("the Lease was %s old, more than %s", age, MaxLeaseAge)
	}
}

// HoldDown kills a service and every process that is started in its place, until release is called.
func (s *Scene) HoldDown(r role.Role) (release func()) {
	s.T.Helper()
	stop, killed := make(chan struct{}), 0
	var wg sync.WaitGroup
	s.MustPID(s.T, r)
	wg.Go(func() {
		for {
			if pid := s.PID(r); pid != 0 && s.SignalPIDs(syscall.SIGKILL, pid) == nil {
				killed++
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	release = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
		s.T.Logf("%s was killed %d times", r, killed)
	})
	s.T.Cleanup(release)
	return release
}

// TestAPIServerDown stops the API server. No container is touched, and what came up meanwhile is
// delivered when it is back.
func TestAPIServerDown(t *testing.T) {
	Shared.UseMicrolet(t)
	s := New(t)
	w := s.CreateSteadyPods()
	s.CreatePods(ScriptPod("restarts", Forever))
	s.WaitReady(Patience, "restarts")
	stop := time.Now()
	if err := s.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	down := s.Record.Mark() // nothing is written until the API server is back
	s.EndContainer("restarts")
	ended := time.Now()
	Await(t, Patience, "the container's restart without an API server",
		func() error { return s.RunsAttempt("restarts", 1) })
	again := time.Now()
	t.Logf("a container that ended while the API server was down runs again after %s", Milliseconds(again.Sub(ended)))
	time.Sleep(time.Until(stop.Add(Outage)))
	if err := s.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	s.Wait(Patience, "the renewal of the Lease", func(record.View) error { return s.LeaseRenewals(down, 1) })
	t.Logf("the Lease was renewed %s after the API server was ready again", Milliseconds(time.Since(back)))
	s.Wait(Patience, "the status that came up meanwhile", func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, "restarts") {
			if c.RestartCount == 1 && c.State.Running != nil && c.State.Running.StartedAt.Before(timeOf(back)) {
				return nil
			}
		}
		return fmt.Errorf("status is %+v", s.ContainerStatuses(v, "restarts"))
	})
	s.Wait(Patience, "the event that came up meanwhile", func(v record.View) error {
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
		Milliseconds(time.Since(back)))
	after := PausePod("after")
	after.Spec.NodeName = s.NodeName() // the scheduler needs a while to come back by itself
	s.CreatePods(after)
	s.WaitReady(Patience, "after")
	t.Logf("a pod bound to the node then is Ready after %s", Milliseconds(s.StartTime("after")))
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

// LeaseRenewals returns nil when the Lease was renewed so often since the mark.
func (s *Scene) LeaseRenewals(since record.Mark, want int) error {
	seen := 0
	for _, e := range s.Record.Since(since) {
		if _, ok := e.Object.(*coordinationv1.Lease); ok && !e.Deleted {
			seen++
		}
	}
	if seen < want {
		return fmt.Errorf("it was renewed %d times since, want %d", seen, want)
	}
	return nil
}

// Restarted waits for the status of a container that was restarted so often and runs.
func (s *Scene) Restarted(pod string, times int32) func(record.View) error {
	return func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, pod) {
			if c.RestartCount >= times && c.State.Running != nil {
				return nil
			}
		}
		return fmt.Errorf("pod %s: %s", pod, Describe(v.Pod(s.Namespace, pod)))
	}
}

func (s *Scene) HasEvent(pod, reason string) func(record.View) error {
	return func(v record.View) error {
		var reasons []string
		for _, e := range v.Events(s.Namespace, pod) {
			reasons = append(reasons, e.Reason)
		}
		if !slices.Contains(reasons, reason) {
			return fmt.Errorf("no event %s about pod %s, only %v", reason, pod, reasons)
		}
		return nil
	}
}

// Containers asks the runtime for the containers of a pod.
func (s *Scene) Containers(pod string) ([]*runtimeapi.Container, error) {
	var found []*runtimeapi.Container
	err := s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(s.T.Context(), 10*time.Second)
		defer cancel()
		got, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": pod, "io.kubernetes.pod.namespace": s.Namespace},
		}})
		found = got.GetContainers()
		return err
	})
	return found, err
}

// EndContainer ends the one running container of a pod from outside, as its own failure would: by a
// signal to its first process.
func (s *Scene) EndContainer(pod string) {
	s.T.Helper()
	all, err := s.Containers(pod)
	if err != nil {
		s.T.Fatal(err)
	}
	for _, c := range all {
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		pid, err := s.ContainerPID(c.GetId())
		if err != nil {
			s.T.Fatal(err)
		}
		if err := s.SignalPIDs(syscall.SIGKILL, pid); err != nil {
			s.T.Fatalf("end container %s: %v", c.GetId(), err)
		}
		return
	}
	s.T.Fatalf("pod %s has no running container", pod)
}

// RunsAttempt returns nil when the runtime has this attempt of a pod's container running.
func (s *Scene) RunsAttempt(pod string, attempt uint32) error {
	all, err := s.Containers(pod)
	if err != nil {
		return err
	}
	var seen []string
	for _, c := range all {
		seen = append(seen, fmt.Sprintf("attempt %d %s", c.GetMetadata().GetAttempt(), c.GetState()))
		if c.GetMetadata().GetAttempt() == attempt && c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return nil
		}
	}
	return fmt.Errorf("pod %s has the containers %v", pod, seen)
}
