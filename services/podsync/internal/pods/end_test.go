package pods

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

func withPreStop(p *v1.Pod, command string) *v1.Pod {
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{command}}},
	}
	return p
}

// takes is an exec that takes as long as the command says.
func takes(ctx context.Context, cmd []string) (stdout, stderr []byte, code int32, err error) {
	d, err := time.ParseDuration(cmd[0])
	if err != nil {
		return nil, []byte(err.Error()), 1, nil
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return nil, nil, 0, nil
}

// stopGraces are the grace periods that the runtime was given, in seconds.
func stopGraces(cri *fake.Runtime) []int64 {
	var all []int64
	for _, c := range cri.Calls("StopContainer") {
		all = append(all, c.Request.(*runtimeapi.StopContainerRequest).Timeout)
	}
	return all
}

// drain returns the events so far.
func (n *node) drain() []string {
	var all []string
	for len(n.events.Events) > 0 {
		all = append(all, <-n.events.Events)
	}
	return all
}

func TestEvictAnswersWhenTheContainersHaveStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fakeDeaf)
		defer n.run()()
		n.apply(testPod("a"))
		eviction := status.Override{
			Reason: "Preempting", Message: "Preempted in order to admit critical pod",
			Condition: &v1.PodCondition{
				Type:   v1.DisruptionTarget,
				Status: v1.ConditionTrue,
				Reason: v1.PodReasonTerminationByKubelet,
			},
		}
		began := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.workers.Evict(short, "a", eviction, new(int64(20))); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("before the containers stopped: %v", err)
		}
		// Again, with another eviction, which comes too late, and a shorter grace period.
		if err := n.workers.Evict(t.Context(), "a", status.Override{Reason: "Other"}, new(int64(5))); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 5*time.Second || took > 8*time.Second {
			t.Fatalf("took %v", took)
		}
		if err := n.workers.Evict(t.Context(), "a", eviction, nil); err != nil {
			t.Fatalf("asked again: %v", err)
		}
		n.wait(time.Second)
		s := n.status("a")
		if s.Phase != v1.PodFailed || s.Reason != "Preempting" || !strings.HasPrefix(s.Message, "Preempted") {
			t.Fatalf("status %s %s %s", s.Phase, s.Reason, s.Message)
		}
		if !slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget }) {
			t.Fatalf("conditions %+v", s.Conditions)
		}
		if got := stopGraces(n.cri); !slices.Equal(got, []int64{20, 5}) {
			t.Fatalf("grace periods %v", got)
		}
		if err := n.workers.Evict(t.Context(), "unknown", eviction, nil); !errors.Is(err, pod.ErrUnknown) {
			t.Fatalf("an unknown pod: %v", err)
		}
		// It stays until it is deleted, and is then gone.
		n.dispatcher.SetPod(deleted(testPod("a"), 30), api)
		n.dispatcher.RemovePod("a", api)
		n.wait(time.Minute)
		if n.workers.Known("a") {
			t.Fatal("its worker is still there")
		}
	})
}

// TestAShorterGracePeriodOvertakes: kubectl delete --grace-period=1 after a plain one. The
// generation is the same, as a second deletion does not change it.
func TestAShorterGracePeriodOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fakeDeaf)
		defer n.run()()
		n.apply(testPod("a"))
		n.apply(deleted(testPod("a"), 600))
		n.dispatcher.SetPod(deleted(testPod("a"), 3), api)
		n.wait(4 * time.Second)
		if !n.final["a"] {
			t.Fatalf("it still waits: %v", stopGraces(n.cri))
		}
		killing := 0
		for _, e := range n.drain() {
			if strings.Contains(e, reasonKilling) {
				killing++
			}
		}
		if killing != 1 {
			t.Fatalf("Killing was reported %d times", killing)
		}
	})
}

// TestAPreStopHookTakesOfTheGracePeriod, and one that takes it all leaves two seconds.
func TestAPreStopHookTakesOfTheGracePeriod(t *testing.T) {
	for command, want := range map[string]int64{"10s": 20, "1h": 2, "broken": 30} {
		t.Run(command, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, newRuntime())
				n.cri.SetProgram("c", fake.Program{Exec: takes})
				defer n.run()()
				p := withPreStop(testPod("a"), command)
				n.apply(p)
				n.dispatcher.SetPod(deleted(p, 30), api)
				n.wait(time.Minute)
				if got := stopGraces(n.cri); !slices.Equal(got, []int64{want}) {
					t.Fatalf("grace periods %v, want %d", got, want)
				}
				reported := slices.ContainsFunc(n.drain(),
					func(e string) bool { return strings.Contains(e, "FailedPreStopHook PreStopHook failed") })
				if reported != (command != "10s") {
					t.Fatalf("failure reported: %v", reported)
				}
			})
		})
	}
}

// TestAHookRunsOnce, whatever cancels or breaks the stop.
func TestAHookRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{Exec: takes, StopDelay: time.Hour})
		defer n.run()()
		p := withPreStop(testPod("a"), "1s")
		n.apply(p)
		n.dispatcher.SetPod(deleted(p, 60), api)
		n.wait(5 * time.Second)
		n.cri.Fail("StopContainer", grpcstatus.Error(codes.Unavailable, "no runtime"))
		n.dispatcher.SetPod(deleted(p, 20), api)
		n.wait(10 * time.Second)
		n.cri.Fail("StopContainer", nil)
		if n.final["a"] || len(n.cri.Calls("StopPodSandbox")) != 0 {
			t.Fatal("what was left of its grace period was taken from it")
		}
		n.wait(16 * time.Second)
		if !n.final["a"] {
			t.Fatal("it still runs: the failures prolonged its grace period")
		}
		if hooks := len(n.cri.Calls("ExecSync")); hooks != 1 {
			t.Fatalf("the hook ran %d times", hooks)
		}
	})
}

func sidecar(name string) v1.Container {
	always := v1.ContainerRestartPolicyAlways
	return v1.Container{Name: name, Image: "busybox", RestartPolicy: &always}
}

// TestSidecarsStopLast, the last one first, within one grace period.
func TestSidecarsStopLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{StopDelay: 5 * time.Second})
		n.cri.SetProgram("s2", fake.Program{StopDelay: 5 * time.Second})
		defer n.run()()
		p := testPod("a")
		p.Spec.InitContainers = []v1.Container{sidecar("s1"), sidecar("s2")}
		n.dispatcher.SetPod(p, api)
		n.wait(5 * time.Second)
		began := time.Now()
		n.dispatcher.SetPod(deleted(p, 30), api)
		n.wait(time.Minute)
		var at []time.Duration
		for _, c := range n.cri.Calls("StopContainer") {
			at = append(at, c.At.Sub(began).Truncate(time.Second))
		}
		if want := []time.Duration{0, 5 * time.Second, 10 * time.Second}; !slices.Equal(at, want) {
			t.Fatalf("stopped after %v, want %v", at, want)
		}
		if got := stopGraces(n.cri); !slices.Equal(got, []int64{30, 25, 20}) {
			t.Fatalf("grace periods %v", got)
		}
	})
}

// TestASandboxThatIsBeingMadeIsNotLeftBehind when its pod is deleted meanwhile.
func TestASandboxThatIsBeingMadeIsNotLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetLatency("RunPodSandbox", 5*time.Second)
		defer n.run()()
		n.apply(testPod("a"))
		n.dispatcher.SetPod(deleted(testPod("a"), 1), api)
		n.wait(10 * time.Second)
		if !n.final["a"] {
			t.Fatal("it has not ended")
		}
		left, err := n.dispatcher.deps.Runtime.State(t.Context(), "a")
		if err != nil || left.ReadySandbox() != nil {
			t.Fatalf("left %+v, %v", left, err)
		}
		if len(left.Sandboxes) != 1 {
			t.Fatal("the sandbox was never made, so this proves nothing")
		}
	})
}

// TestAHungSandboxHoldsUpNoDeletion for longer than patience lasts.
func TestAHungSandboxHoldsUpNoDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.cri.Hang("RunPodSandbox")()
		defer n.run()()
		n.apply(testPod("a"))
		n.dispatcher.SetPod(deleted(testPod("a"), 1), api)
		n.wait(settlePatience + 2*time.Second)
		if !n.final["a"] {
			t.Fatal("it has not ended")
		}
	})
}

func TestAPodPastItsDeadlineFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		stop := n.run()
		p := testPod("a")
		p.Spec.ActiveDeadlineSeconds = new(int64(60))
		n.dispatcher.SetPod(p, api)
		n.wait(50 * time.Second)
		if !n.running("a") {
			t.Fatalf("status %+v", n.status("a"))
		}
		// A restart of podsync does not prolong it.
		p = p.DeepCopy()
		p.Status = n.status("a")
		stop()
		next := newNode(t, n.cri)
		defer next.run()()
		next.dispatcher.SetPod(p, api)
		next.wait(12 * time.Second)
		s := next.status("a")
		if s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" ||
			s.Message != "Pod was active on the node longer than the specified deadline" {
			t.Fatalf("status %s %q %q", s.Phase, s.Reason, s.Message)
		}
		if s.ContainerStatuses[0].State.Terminated == nil {
			t.Fatalf("its container: %+v", s.ContainerStatuses[0].State)
		}
		if events := next.drain(); !slices.Contains(events,
			"Normal DeadlineExceeded Pod was active on the node longer than the specified deadline") {
			t.Fatalf("events %q", events)
		}
	})
}

// TestADeadlineOvertakesAPull: it counts from when the pod came to the node.
func TestADeadlineOvertakesAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.slow["a"] = true
		defer n.run()()
		p := testPod("a")
		p.Spec.ActiveDeadlineSeconds = new(int64(5))
		n.dispatcher.SetPod(p, api)
		n.wait(7 * time.Second)
		if s := n.statuses["a"]; s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" {
			t.Fatalf("status %s %q", s.Phase, s.Reason)
		}
	})
}

// TestAStartUnderWayKeepsItsSandbox when its pod is deleted: the container is started and then
// stopped, and does not end as one that could not be started.
func TestAStartUnderWayKeepsItsSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetLatency("StartContainer", 3*time.Second)
		defer n.run()()
		n.apply(testPod("a"))
		n.dispatcher.SetPod(deleted(testPod("a"), 5), api)
		n.wait(20 * time.Second)
		started, stopped := n.cri.Calls("StartContainer"), n.cri.Calls("StopPodSandbox")
		if !n.final["a"] || len(started) != 1 || len(stopped) == 0 {
			t.Fatalf("final %v, %d starts, %d sandboxes stopped", n.final["a"], len(started), len(stopped))
		}
		if stopped[0].At.Sub(started[0].At) < 3*time.Second {
			t.Fatalf("the sandbox was stopped %v after the start began", stopped[0].At.Sub(started[0].At))
		}
		if len(n.cri.Calls("StopContainer")) != 1 {
			t.Fatal("the container that was started meanwhile was not stopped")
		}
	})
}

// A shutdown of the node had stopped the container when an earlier podsync was killed.
func TestAPodThatAShutdownEndsIsNotStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.ends["a"] = &status.Override{Phase: v1.PodFailed, Reason: "Terminated", Yields: true}
		p := testPod("a")
		p.Status.Phase = v1.PodRunning
		n.apply(p)
		time.Sleep(time.Minute)
		if calls := n.cri.Calls("StartContainer"); len(calls) != 0 {
			t.Errorf("%d containers were started", len(calls))
		}
		if s := n.statuses["a"]; s.Phase != v1.PodFailed || s.Reason != "Terminated" {
			t.Errorf("status is %s %s", s.Phase, s.Reason)
		}
		standings := n.workers.Standings()
		if len(standings) != 1 || !standings[0].Released || standings[0].Syncing {
			t.Errorf("standing is %+v", standings)
		}
	})
}
