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
	// maxLease is how old the node's Lease may ever be while the API server is there: its own duration, after which
	// others may take the node for lost. It is renewed every 10 s.
	maxLease = 40 * time.Second
)

// killOrder is every process of the node agent.
var killOrder = append(slices.Clone(services), role.Up)

// TestKills kills each process, one at a time and then all at once. No container notices.
func TestKills(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	var table strings.Builder
	for _, r := range killOrder {
		var starts []string
		for i := range kills {
			starts = append(starts, s.killed(fmt.Sprintf("mid-%s-%d", r, i), r))
		}
		fmt.Fprintf(&table, "%-12s %s\n", r, strings.Join(starts, ", "))
	}
	var starts []string
	for i := range kills {
		starts = append(starts, s.killed(fmt.Sprintf("mid-all-%d", i), killOrder...))
	}
	fmt.Fprintf(&table, "%-12s %s\n", "all at once", strings.Join(starts, ", "))
	age := w.leaseAge()
	t.Logf("%d pods steady; SIGKILL of …: a pod created at that moment is Ready after …\n%sgreatest age of the Lease: %s", len(w.pods), table.String(), ms(age))
	w.untouched()
	w.nodeReady()
	if age > maxLease {
		t.Errorf("the Lease was %s old, more than %s", age, maxLease)
	}
}

// killed kills services and creates a pod at that moment, which runs. All services are back when it
// returns, by other processes.
func (s *scene) killed(name string, roles ...role.Role) string {
	s.t.Helper()
	s.waitHealthy(s.t, patience)
	before := map[role.Role]int{}
	for _, r := range roles {
		before[r] = s.mustPID(s.t, r)
	}
	s.signal(s.t, syscall.SIGKILL, roles...)
	s.create(plain(name))
	s.ready(patience, name)
	s.waitHealthy(s.t, patience)
	for _, r := range roles {
		if s.pid(r) == before[r] {
			s.t.Errorf("%s was killed and has the same pid %d", r, before[r])
		}
	}
	s.remove(name)
	return ms(s.startTime(name)).String()
}

// TestContainerdRestart restarts the runtime. No container notices, and pods start as before.
func TestContainerdRestart(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	for i := range kills {
		name := fmt.Sprintf("mid-%d", i)
		s.create(plain(name))
		if err := s.RestartContainerd(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.ready(patience, name)
		s.remove(name)
		t.Logf("a pod created as containerd stopped is Ready after %s", ms(s.startTime(name)))
	}
	w.untouched()
	w.nodeReady()
	if age := w.leaseAge(); age > maxLease {
		t.Errorf("the Lease was %s old, more than %s", age, maxLease)
	}
}

// TestBusDown keeps the bus down: whatever process of it is started is killed at once. Everything
// but Events goes on meanwhile.
func TestBusDown(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	s.create(scripted("restarts", forever), plain("goes"))
	s.ready(patience, "restarts", "goes")
	release := s.holdDown(role.Bus)
	time.Sleep(time.Second) // it is down and the others have noticed
	begin, down := time.Now(), s.record.Mark()
	s.create(plain("mid"))
	s.remove("goes")
	s.endContainer("restarts")
	// The bus is down until all of this has happened.
	s.ready(patience, "mid")
	s.wait(patience, "the end of a pod while the bus is down", s.areGone("goes"))
	s.wait(patience, "a container's restart while the bus is down", s.restarted("restarts", 1))
	t.Logf("bus down: a pod is Ready after %s; all three things done after %s", ms(s.startTime("mid")),
		ms(time.Since(begin)))
	s.wait(patience, "a second renewal of the Lease while the bus is down",
		func(record.View) error { return s.renewals(down, 2) })
	time.Sleep(time.Until(begin.Add(outage - time.Second)))
	release()
	s.waitHealthy(t, patience)
	s.wait(patience, "the event of a start while the bus was down", s.hasEvent("mid", "Started"))
	w.untouched()
	w.nodeReady()
	if age := w.leaseAge(); age > maxLease {
		t.Errorf("the Lease was %s old, more than %s", age, maxLease)
	}
}

// holdDown kills a service and every process that is started in its place, until release is called.
func (s *scene) holdDown(r role.Role) (release func()) {
	s.t.Helper()
	stop, killed := make(chan struct{}), 0
	var wg sync.WaitGroup
	s.mustPID(s.t, r)
	wg.Go(func() {
		for {
			if pid := s.pid(r); pid != 0 && s.kill(syscall.SIGKILL, pid) == nil {
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
		s.t.Logf("%s was killed %d times", r, killed)
	})
	s.t.Cleanup(release)
	return release
}

// TestAPIServerDown stops the API server. No container is touched, and what came up meanwhile is
// delivered when it is back.
func TestAPIServerDown(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	s.create(scripted("restarts", forever))
	s.ready(patience, "restarts")
	stop := time.Now()
	if err := s.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	down := s.record.Mark() // nothing is written until the API server is back
	s.endContainer("restarts")
	ended := time.Now()
	await(t, patience, "the container's restart without an API server",
		func() error { return s.runsAttempt("restarts", 1) })
	again := time.Now()
	t.Logf("a container that ended while the API server was down runs again after %s", ms(again.Sub(ended)))
	time.Sleep(time.Until(stop.Add(outage)))
	if err := s.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	s.wait(patience, "the renewal of the Lease", func(record.View) error { return s.renewals(down, 1) })
	t.Logf("the Lease was renewed %s after the API server was ready again", ms(time.Since(back)))
	s.wait(patience, "the status that came up meanwhile", func(v record.View) error {
		for _, c := range s.statuses(v, "restarts") {
			if c.RestartCount == 1 && c.State.Running != nil && c.State.Running.StartedAt.Before(timeOf(back)) {
				return nil
			}
		}
		return fmt.Errorf("status is %+v", s.statuses(v, "restarts"))
	})
	s.wait(patience, "the event that came up meanwhile", func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.ns, "restarts") {
			at := lastTime(e)
			seen = append(seen, fmt.Sprintf("%s at %s", e.Reason, at))
			if e.Reason == "Started" && at.After(ended.Add(-time.Second)) && at.Before(back) {
				return nil
			}
		}
		return fmt.Errorf("no event Started of the time without an API server: %v", seen)
	})
	t.Logf("status and event of that time have been delivered %s after the API server was ready again",
		ms(time.Since(back)))
	after := plain("after")
	after.Spec.NodeName = s.NodeName() // the scheduler needs a while to come back by itself
	s.create(after)
	s.ready(patience, "after")
	t.Logf("a pod bound to the node then is Ready after %s", ms(s.startTime("after")))
	// The node controller may have lost patience meanwhile and marked the pods of the node: that is
	// not the node agent's doing. Which containers run is.
	s.sync()
	for _, e := range s.record.Since(w.mark) {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || !strings.HasPrefix(p.Name, "steady-") || p.Namespace != s.ns {
			continue
		}
		was := w.pods[slices.IndexFunc(w.pods, func(q *corev1.Pod) bool { return q.UID == p.UID })]
		if fmt.Sprint(record.Containers(p)) != fmt.Sprint(record.Containers(was)) || e.Deleted {
			t.Errorf("%s was touched: containers were %v and are %v, deleted %t", p.Name, record.Containers(was),
				record.Containers(p), e.Deleted)
		}
	}
	t.Logf("changes after which the node was not Ready, by the node controller's word: %d",
		len(record.NodeReady(s.record.Since(w.mark))))
}

// renewals returns nil when the Lease was renewed so often since the mark.
func (s *scene) renewals(since record.Mark, want int) error {
	seen := 0
	for _, e := range s.record.Since(since) {
		if _, ok := e.Object.(*coordinationv1.Lease); ok && !e.Deleted {
			seen++
		}
	}
	if seen < want {
		return fmt.Errorf("it was renewed %d times since, want %d", seen, want)
	}
	return nil
}

// restarted waits for the status of a container that was restarted so often and runs.
func (s *scene) restarted(pod string, times int32) func(record.View) error {
	return func(v record.View) error {
		for _, c := range s.statuses(v, pod) {
			if c.RestartCount >= times && c.State.Running != nil {
				return nil
			}
		}
		return fmt.Errorf("pod %s: %s", pod, describe(v.Pod(s.ns, pod)))
	}
}

func (s *scene) hasEvent(pod, reason string) func(record.View) error {
	return func(v record.View) error {
		var reasons []string
		for _, e := range v.Events(s.ns, pod) {
			reasons = append(reasons, e.Reason)
		}
		if !slices.Contains(reasons, reason) {
			return fmt.Errorf("no event %s about pod %s, only %v", reason, pod, reasons)
		}
		return nil
	}
}

// containers asks the runtime for the containers of a pod.
func (s *scene) containers(pod string) ([]*runtimeapi.Container, error) {
	var found []*runtimeapi.Container
	err := s.cri(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
		defer cancel()
		got, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": pod, "io.kubernetes.pod.namespace": s.ns},
		}})
		found = got.GetContainers()
		return err
	})
	return found, err
}

// endContainer ends the one running container of a pod from outside, as its own failure would: by a
// signal to its first process.
func (s *scene) endContainer(pod string) {
	s.t.Helper()
	all, err := s.containers(pod)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range all {
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		pid, err := s.firstProcess(c.GetId())
		if err != nil {
			s.t.Fatal(err)
		}
		if err := s.kill(syscall.SIGKILL, pid); err != nil {
			s.t.Fatalf("end container %s: %v", c.GetId(), err)
		}
		return
	}
	s.t.Fatalf("pod %s has no running container", pod)
}

// runsAttempt returns nil when the runtime has this attempt of a pod's container running.
func (s *scene) runsAttempt(pod string, attempt uint32) error {
	all, err := s.containers(pod)
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
