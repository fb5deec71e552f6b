package pods

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

func withPostStart(p *v1.Pod, command string) *v1.Pod {
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{command}}},
	}
	return p
}

// TestAContainerWaitsForThePostStartHookBeforeIt, and is not called running before its own
// hook has ended.
func TestAContainerWaitsForThePostStartHookBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{Exec: takes})
		defer n.run()()
		p := withPostStart(testPod("a"), "10s")
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "d", Image: "busybox"})
		n.dispatcher.SetPod(p, api)
		n.dispatcher.SetPod(testPod("b"), api)
		n.wait(9 * time.Second)
		if s := n.status("a"); s.Phase != v1.PodPending || len(n.cri.Calls("StartContainer")) != 2 {
			t.Fatalf("phase %s, %d containers started", s.Phase, len(n.cri.Calls("StartContainer")))
		}
		if !n.running("b") {
			t.Fatal("the neighbour waits too")
		}
		n.wait(2 * time.Second)
		if s := n.status("a"); s.Phase != v1.PodRunning {
			t.Fatalf("phase %s", s.Phase)
		}
	})
}

func TestADeletionOvertakesAPostStartHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{Exec: takes})
		defer n.run()()
		p := withPostStart(testPod("a"), "1h")
		n.apply(p)
		n.dispatcher.SetPod(deleted(p, 5), api)
		n.wait(2 * time.Second)
		if !n.final["a"] {
			t.Fatal("the deletion waits for the hook")
		}
		for _, e := range n.drain() {
			if strings.Contains(e, reasonFailedPostStartHook) {
				t.Fatalf("reported %q", e)
			}
		}
	})
}

// TestAFailedPostStartHookEndsItsContainer, which its restart policy brings back.
func TestAFailedPostStartHookEndsItsContainer(t *testing.T) {
	for policy, again := range map[v1.RestartPolicy]bool{v1.RestartPolicyAlways: true, v1.RestartPolicyNever: false} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, newRuntime())
				exec := func(context.Context, []string) (stdout, stderr []byte, code int32, err error) {
					return []byte("out"), []byte("no"), 3, nil
				}
				n.cri.SetProgram("c", fake.Program{Exec: exec, ExitCode: 143})
				defer n.run()()
				p := withPostStart(testPod("a"), "true")
				p.Spec.RestartPolicy = policy
				n.dispatcher.SetPod(p, api)
				n.wait(5 * time.Second)
				s := n.status("a").ContainerStatuses[0]
				if !slices.Contains(n.drain(), "Warning FailedPostStartHook PostStartHook failed") {
					t.Fatal("not reported")
				}
				if !again {
					if s.State.Terminated == nil || len(n.cri.Calls("StartContainer")) != 1 {
						t.Fatalf("status %+v", s.State)
					}
					return
				}
				if s.State.Waiting == nil || s.RestartCount == 0 {
					t.Fatalf("status %+v", s)
				}
			})
		})
	}
}

// TestAPostStartErrorIsShown while nothing else is wrong.
func TestAPostStartErrorIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		exec := func(context.Context, []string) (stdout, stderr []byte, code int32, err error) {
			return nil, []byte("no"), 3, nil
		}
		n.cri.SetProgram("c", fake.Program{Exec: exec})
		defer n.run()()
		n.dispatcher.SetPod(withPostStart(testPod("a"), "true"), api)
		n.wait(500 * time.Millisecond)
		waiting := n.status("a").ContainerStatuses[0].State.Waiting
		want := `Exec lifecycle hook ([true]) for Container "c" in Pod "pod-a_ns(a)" failed - error: command 'true' exited with 3: no, message: "no"`
		if waiting == nil || waiting.Reason != "PostStartHookError" || waiting.Message != want {
			t.Fatalf("waiting %+v", waiting)
		}
	})
}

// TestALongPostStartErrorIsReported: the status of the pod stays small enough for the API server and the bus.
func TestALongPostStartErrorIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		exec := func(context.Context, []string) (stdout, stderr []byte, code int32, err error) {
			return bytes.Repeat([]byte{0}, 15<<20), nil, 1, nil
		}
		n.cri.SetProgram("c", fake.Program{Exec: exec})
		defer n.run()()
		n.dispatcher.SetPod(withPostStart(testPod("a"), "true"), api)
		n.wait(500 * time.Millisecond)
		waiting := n.status("a").ContainerStatuses[0].State.Waiting
		want := `Exec lifecycle hook ([true]) for Container "c" in Pod "pod-a_ns(a)" failed - error: command 'true' exited with 1: , message: "\x00`
		if waiting == nil || waiting.Reason != "PostStartHookError" || !strings.HasPrefix(waiting.Message, want) {
			t.Fatalf("waiting %+v", waiting)
		}
		if len(waiting.Message) > 12<<10 {
			t.Errorf("a message of %d bytes", len(waiting.Message))
		}
	})
}

// TestAPullOutlivesAFailedSandbox, and is asked for once.
func TestAPullOutlivesAFailedSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.Fail("RunPodSandbox", errors.New("no network"))
		defer n.run()()
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(20 * time.Second)
		if tries := len(n.cri.Calls("RunPodSandbox")); tries < 3 {
			t.Fatalf("%d tries prove nothing", tries)
		}
		n.cri.Fail("RunPodSandbox", nil)
		n.wait(20 * time.Second)
		if !n.running("a") || n.ensured.Load() != 1 {
			t.Fatalf("status %+v, asked for the image %d times", n.status("a").Phase, n.ensured.Load())
		}
	})
}

// TestSidecarsStartInTurn: a pod's containers start after its sidecars run.
func TestSidecarsStartInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("init", fake.Program{Lifetime: 2 * time.Second})
		defer n.run()()
		p := testPod("a")
		p.Spec.InitContainers = []v1.Container{sidecar("s1"), {Name: "init", Image: "busybox"}, sidecar("s2")}
		n.apply(p)
		n.wait(2 * time.Second)
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		var names []string
		for _, c := range n.cri.Calls("CreateContainer") {
			names = append(names, c.Request.(*runtimeapi.CreateContainerRequest).Config.Metadata.Name)
		}
		if want := []string{"s1", "init", "s2", "c"}; !slices.Equal(names, want) {
			t.Fatalf("started %v, want %v", names, want)
		}
		if s := n.status("a"); s.Phase != v1.PodRunning {
			t.Fatalf("phase %s", s.Phase)
		}
	})
}
