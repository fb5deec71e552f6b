package pods

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// TestADiskThatIsFullHurtsOnlyWhoNeedsIt: the pod says so, is tried again and runs when
// there is room; its neighbour is not held up.
func TestADiskThatIsFullHurtsOnlyWhoNeedsIt(t *testing.T) {
	for where, reported := range map[string]string{
		"Prepare":   "Warning Failed error making pod data directories: no space left on device",
		"Container": "Warning Failed Error: no space left on device",
	} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, newRuntime())
				n.breaks(where, "a", errors.New("no space left on device"))
				defer n.run()()
				n.dispatcher.SetPod(testPod("a"), api)
				n.dispatcher.SetPod(testPod("b"), api)
				n.wait(30 * time.Second)
				if !n.running("b") || n.running("a") {
					t.Fatalf("statuses %+v", n.statuses)
				}
				if !slices.Contains(n.drain(), reported) {
					t.Fatal("not reported")
				}
				if where == "Container" {
					waiting := n.status("a").ContainerStatuses[0].State.Waiting
					if waiting == nil || waiting.Reason != "CreateContainerConfigError" ||
						waiting.Message != "no space left on device" {
						t.Fatalf("waiting %+v", waiting)
					}
				}
				n.breaks(where, "a", nil)
				n.wait(16 * time.Second)
				if !n.running("a") {
					t.Fatalf("status %+v", n.status("a"))
				}
			})
		})
	}
}

// TestASlowRuntimeIsWaitedFor, by the pod that uses it alone.
func TestASlowRuntimeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetLatency("", 20*time.Second)
		defer n.run()()
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(5 * time.Minute)
		if !n.running("a") || len(n.cri.Calls("StartContainer")) != 1 || len(n.cri.Calls("RunPodSandbox")) != 1 {
			t.Fatalf("status %+v", n.status("a"))
		}
	})
}

// TestCallsThatHangHoldUpTheirPodsAlone: the stops of more pods hang than calls may run at a time.
func TestCallsThatHangHoldUpTheirPodsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		var hung []types.UID
		for i := range 8 {
			hung = append(hung, types.UID(fmt.Sprint("hung-", i)))
			n.dispatcher.SetPod(testPod(hung[i]), api)
		}
		n.wait(5 * time.Second)
		release, releaseSandboxes := n.cri.Hang("StopContainer"), n.cri.Hang("StopPodSandbox")
		for _, uid := range hung {
			n.dispatcher.SetPod(deleted(testPod(uid), 1), api)
		}
		n.wait(time.Second)
		n.dispatcher.SetPod(testPod("other"), api)
		n.wait(2 * time.Second)
		if !n.running("other") || len(n.cri.Calls("StopContainer")) < len(hung) {
			t.Fatalf("%d stops hang, the other's status %+v", len(n.cri.Calls("StopContainer")), n.status("other"))
		}
		n.wait(10 * time.Minute)
		for _, uid := range hung {
			if n.final[uid] {
				t.Fatalf("pod %s is reported to be gone, and was not stopped", uid)
			}
		}
		release()
		releaseSandboxes()
		n.wait(time.Minute)
		for _, uid := range hung {
			if !n.final[uid] {
				t.Fatalf("pod %s: %+v", uid, n.status(uid))
			}
		}
	})
}

// TestATokenThatExpiresStopsNoPod: the apiserver has been away for longer than the token of a volume lives. The pod
// says so, runs on, and has a fresh token soon after the apiserver's return.
func TestATokenThatExpiresStopsNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.Volumes = []v1.Volume{{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
			Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}},
		}}}}
		n.dispatcher.SetPod(p, api)
		n.wait(5 * time.Second)
		n.drain()
		n.breaks("Refresh", "a", errors.New("failed to fetch token: connection refused"))
		n.wait(2 * time.Hour)
		if !slices.Contains(n.drain(), "Warning FailedMount failed to fetch token: connection refused") {
			t.Error("not reported")
		}
		if !n.running("a") || len(n.cri.Calls("StopContainer"))+len(n.cri.Calls("StopPodSandbox")) > 0 ||
			len(n.cri.Calls("StartContainer")) != 1 {
			t.Errorf("the pod was touched: %+v", n.status("a"))
		}
		n.breaks("Refresh", "a", nil)
		n.mu.Lock()
		before := n.refreshed["a"]
		n.mu.Unlock()
		n.wait(3 * time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.refreshed["a"] == before {
			t.Error("its token is not renewed")
		}
	})
}

// TestARestartAtAnyMoment: whenever podsync ends and starts again while a pod starts or is
// stopped, the pod runs once, and is gone when it was deleted.
func TestARestartAtAnyMoment(t *testing.T) {
	for offset := 500 * time.Millisecond; offset < 14*time.Second; offset += time.Second {
		for _, deleting := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v deleting %v", offset, deleting), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { restartAt(t, offset, deleting) })
			})
		}
	}
}

func restartAt(t *testing.T, offset time.Duration, deleting bool) {
	cri := newRuntime()
	slow := func(d time.Duration) {
		for _, method := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopPodSandbox",
			"RemoveContainer", "RemovePodSandbox"} {
			cri.SetLatency(method, d)
		}
	}
	cri.SetProgram("c", fake.Program{Exec: takes, StopDelay: 2 * time.Second})
	p := withPostStart(withPreStop(testPod("a"), "2s"), "2s")
	p.Spec.Containers[0].Lifecycle.PreStop = &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"2s"}}}

	first := newNode(t, cri)
	stop := first.run()
	if deleting {
		first.dispatcher.SetPod(p, api)
		first.wait(10 * time.Second)
		slow(2 * time.Second)
		first.dispatcher.SetPod(deleted(p, 30), api)
	} else {
		slow(2 * time.Second)
		first.dispatcher.SetPod(p, api)
	}
	time.Sleep(offset)
	stop()
	p = p.DeepCopy()
	if s, ok := first.Last("a"); ok {
		p.Status = s
	}

	slow(0)
	second := newNode(t, cri)
	defer second.run()()
	if deleting {
		second.dispatcher.SetPod(deleted(p, 30), api)
		second.wait(time.Minute)
		if !second.final["a"] {
			t.Fatalf("status %+v", second.status("a"))
		}
		second.dispatcher.RemovePod("a", api)
		second.wait(time.Second)
	} else {
		second.dispatcher.SetPod(p, api)
		second.wait(time.Minute)
		if !second.running("a") {
			t.Fatalf("status %+v", second.status("a"))
		}
	}
	state, err := second.dispatcher.deps.Runtime.State(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	running := 0
	for i := range state.Containers {
		if state.Containers[i].Running() {
			running++
		}
	}
	if deleting && len(state.Sandboxes)+len(state.Containers) != 0 ||
		!deleting && (running != 1 || state.ReadySandbox() == nil) {
		t.Fatalf("left %+v", state)
	}
}
