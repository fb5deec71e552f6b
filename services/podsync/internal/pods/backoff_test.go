package pods

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// TestACommandThatDoesNotExistIsTriedAgainSoon, and then backs off, as with the kubelet, whose
// relist finds within a second that the container has ended.
func TestACommandThatDoesNotExistIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{StartErr: errors.New(`exec: "no": executable file not found in $PATH`)})
		defer n.run()()
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(500 * time.Millisecond)
		if w := n.status("a").ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "RunContainerError" {
			t.Fatalf("waiting %+v", w)
		}
		n.wait(5500 * time.Millisecond)
		s := n.status("a").ContainerStatuses[0]
		if s.RestartCount != 1 || s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" {
			t.Fatalf("after 6 s: restart count %d, state %+v", s.RestartCount, s.State)
		}
		if s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.Reason != "StartError" {
			t.Fatalf("last state %+v", s.LastTerminationState)
		}
		backOff := func(e string) bool {
			return strings.HasPrefix(e, "Warning BackOff Back-off restarting failed container c in pod pod-a_ns(a)")
		}
		if events := n.drain(); !slices.ContainsFunc(events, backOff) {
			t.Fatalf("events %q", events)
		}
		n.wait(10 * time.Second)
		if tries := len(n.cri.Calls("StartContainer")); tries != 3 {
			t.Fatalf("%d tries in 16 s, want 3: at once, after 1 s and 10 s after that", tries)
		}
	})
}

// TestAContainerThatEndedIsRestartedBesideOneThatCannotStart.
func TestAContainerThatEndedIsRestartedBesideOneThatCannotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{Lifetime: time.Millisecond, ExitCode: 1})
		n.cri.SetLatency("CreateContainer", 10*time.Millisecond) // c has ended when d cannot be created
		defer n.run()()
		p := testPod("a")
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "d", Image: "missing"})
		n.dispatcher.SetPod(p, api)
		n.wait(5 * time.Second)
		for _, s := range n.status("a").ContainerStatuses {
			if s.Name == "c" && s.RestartCount != 1 {
				t.Errorf("restart count %d", s.RestartCount)
			}
			if s.Name == "d" && (s.State.Waiting == nil || s.State.Waiting.Reason != "CreateContainerError") {
				t.Errorf("the other one: %+v", s.State)
			}
		}
	})
}

// TestAContainerThatCannotBeCreatedIsTriedEveryTenSeconds: nothing of it has ended.
func TestAContainerThatCannotBeCreatedIsTriedEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.Fail("CreateContainer", errors.New("no device"))
		defer n.run()()
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(35 * time.Second)
		if tries := len(n.cri.Calls("CreateContainer")); tries != 4 {
			t.Errorf("%d tries", tries)
		}
	})
}
