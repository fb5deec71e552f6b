package pods

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

const file, web = podsyncv1.PodSource_POD_SOURCE_FILE, podsyncv1.PodSource_POD_SOURCE_HTTP

func staticPod(uid types.UID) *v1.Pod {
	p := testPod(uid)
	p.Name, p.Generation = "static", 0
	return p
}

// TestAnEditedManifestWaitsForTheOldPod: both would need the same ports.
func TestAnEditedManifestWaitsForTheOldPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.dispatcher.SetPod(staticPod("1"), file)
		n.wait(time.Second)
		if !n.running("1") {
			t.Fatal("the first does not run")
		}
		n.dispatcher.SetPod(staticPod("2"), file) // before its predecessor is taken back: another file of the same name
		n.dispatcher.SetPod(staticPod("3"), web)
		n.wait(time.Minute)
		if n.workers.Known("2") || n.workers.Known("3") {
			t.Fatal("a second pod of the name began")
		}
		n.dispatcher.RemovePod("2", file)
		n.dispatcher.RemovePod("1", file)
		n.wait(time.Minute)
		if n.workers.Known("1") || n.workers.Known("2") || !n.running("3") {
			t.Fatalf("pods are %v", n.workers.UIDs())
		}
		n.dispatcher.RemovePod("3", file) // not its source
		n.wait(time.Minute)
		if !n.running("3") {
			t.Fatal("a source ended another's pod")
		}
	})
}

func TestAnEarlierVersionEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		var fails atomic.Bool
		var asked atomic.Int32
		fails.Store(true)
		n.dispatcher.deps.Predecessors = predecessors(func(p *v1.Pod) error {
			asked.Add(1)
			if n.running(p.UID) {
				t.Error("asked after the start")
			}
			if fails.Load() {
				return errors.New("runtime is away")
			}
			return nil
		})
		defer n.run()()
		n.dispatcher.SetPod(staticPod("1"), file)
		n.dispatcher.SetPod(testPod("ordinary"), api)
		n.wait(time.Minute)
		if n.running("1") || !n.running("ordinary") {
			t.Fatal("started although an earlier version may run")
		}
		fails.Store(false)
		n.wait(time.Minute)
		before := asked.Load()
		n.wait(10 * time.Minute)
		if !n.running("1") || asked.Load() != before {
			t.Fatalf("not started, or asked again (%d)", asked.Load()-before)
		}
	})
}

func TestSyncedWhenEverySourceWasHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		times := 0
		n.dispatcher.progress.Synced = func() { times++ }
		n.dispatcher.unsynced = []podsyncv1.PodSource{api, file}
		defer n.run()()
		n.dispatcher.SourceSynced(file)
		n.dispatcher.SourceSynced(file)
		n.wait(time.Second)
		if n.workers.isSynced() {
			t.Fatal("synced without the apiserver")
		}
		n.dispatcher.SourceSynced(api)
		n.dispatcher.SourceSynced(file)
		n.wait(time.Second)
		if !n.workers.isSynced() || times != 1 {
			t.Fatalf("reported %d times", times)
		}
	})
}

func (n *node) isWanted(uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wanted[uid]
}

func TestAStaticPodIsAnnouncedBeforeItsWorkerStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.dispatcher.deps.Ends = func(p *v1.Pod) *status.Override {
			if n.isWanted(p.UID) != (p.UID == "static") {
				t.Errorf("pod %s: announced %v", p.UID, n.isWanted(p.UID))
			}
			return nil
		}
		defer n.run()()
		n.dispatcher.SetPod(staticPod("static"), file)
		n.dispatcher.SetPod(testPod("ordinary"), api)
		n.dispatcher.SetPod(staticPod("ordinary"), file) // a manifest may name the UID of another pod
		n.wait(time.Second)
		if n.isWanted("ordinary") {
			t.Error("a pod of the API server has its status sent to a mirror pod")
		}
	})
}

// TestAManifestThatIsPutBackRestartsItsPod, as under the kubelet: the same pod goes on, with a restart.
func TestAManifestThatIsPutBackRestartsItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.dispatcher.SetPod(staticPod("1"), file)
		n.wait(time.Second)
		n.dispatcher.RemovePod("1", file)
		n.dispatcher.SetPod(staticPod("1"), file)
		n.wait(time.Minute)
		if !n.running("1") || n.status("1").ContainerStatuses[0].RestartCount != 1 ||
			len(n.cri.Calls("StartContainer")) != 2 {
			t.Fatalf("status %+v", n.status("1"))
		}
		if n.admission.asked["1"] != 2 || !n.isWanted("1") || n.published.said("1") != "" {
			t.Errorf("admission asked %d times, mirrored %v, reported %q", n.admission.asked["1"], n.isWanted("1"),
				n.published.said("1"))
		}
		n.dispatcher.RemovePod("1", file)
		n.dispatcher.SetPod(staticPod("1"), file)
		n.dispatcher.RemovePod("1", file)
		n.wait(time.Minute)
		state, err := n.dispatcher.deps.Runtime.State(t.Context(), "1")
		if err != nil || len(state.Sandboxes)+len(state.Containers) > 0 || n.workers.Known("1") || n.isWanted("1") {
			t.Errorf("removed last: left %+v, %v, known %v, mirrored %v", state, err, n.workers.Known("1"),
				n.isWanted("1"))
		}
	})
}

// TestAManifestThatIsTakenAwayWhileItsPodWasToRestart: whenever that happens, nothing is left.
func TestAManifestThatIsTakenAwayWhileItsPodWasToRestart(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, newRuntime())
			for _, method := range []string{"StopContainer", "StopPodSandbox", "RunPodSandbox", "RemovePodSandbox"} {
				n.cri.SetLatency(method, time.Second)
			}
			defer n.run()()
			n.dispatcher.SetPod(staticPod("1"), file)
			n.wait(10 * time.Second)
			n.dispatcher.RemovePod("1", file)
			n.dispatcher.SetPod(staticPod("1"), file)
			time.Sleep(after) // together with the steps of its end
			n.dispatcher.RemovePod("1", file)
			n.wait(time.Minute)
			state, err := n.dispatcher.deps.Runtime.State(t.Context(), "1")
			if err != nil || len(state.Sandboxes)+len(state.Containers) > 0 || n.workers.Known("1") || n.isWanted("1") {
				t.Errorf("after %v: left %+v, %v, known %v, mirrored %v", after, state, err, n.workers.Known("1"),
					n.isWanted("1"))
			}
		})
	}
}

// TestAPodThatComesBackIsMirrored: what keeps pods by their UID hears of it again, also when it was put back while what
// was left of it was removed, when it had ended by itself, or while it waited for another of its name.
func TestAPodThatComesBackIsMirrored(t *testing.T) {
	for name, test := range map[string]func(n *node){
		"while it is removed": func(n *node) {
			n.cri.SetLatency("RemovePodSandbox", 10*time.Second)
			n.dispatcher.RemovePod("1", file)
			n.wait(5 * time.Second)
			n.dispatcher.SetPod(staticPod("1"), file)
		},
		"after it had ended": func(n *node) {
			n.dispatcher.RemovePod("1", file)
			n.wait(time.Minute)
			once := staticPod("1")
			once.Spec.RestartPolicy = v1.RestartPolicyNever
			n.dispatcher.SetPod(once, file)
			n.wait(time.Second)
			if err := n.cri.ExitContainer(strings.TrimPrefix(n.status("1").ContainerStatuses[0].ContainerID, "containerd://"),
				0); err != nil {
				n.t.Fatal(err)
			}
			n.workers.Wake("1", "test")
			n.wait(time.Second)
			if n.status("1").Phase != v1.PodSucceeded {
				n.t.Fatalf("status %+v", n.status("1"))
			}
			n.dispatcher.RemovePod("1", file)
			n.dispatcher.SetPod(once, file)
		},
		"while it waits": func(n *node) {
			n.cri.SetLatency("StopContainer", 10*time.Second)
			n.dispatcher.SetPod(staticPod("2"), file)
			n.dispatcher.RemovePod("1", file)
			n.dispatcher.RemovePod("2", file)
			n.dispatcher.SetPod(staticPod("1"), file)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := startNode(t)
				n.dispatcher.SetPod(staticPod("1"), file)
				n.wait(time.Second)
				test(n)
				n.wait(time.Minute)
				if !n.running("1") || !n.isWanted("1") || n.isWanted("2") || n.published.said("1") != "" {
					t.Errorf("mirrored %v and %v, reported %q, status %+v", n.isWanted("1"), n.isWanted("2"),
						n.published.said("1"), n.status("1"))
				}
			})
		})
	}
}

// TestASuccessorWaitsForNoRemoval: what is left of the pod of the earlier manifest may stay for as long as it likes.
func TestASuccessorWaitsForNoRemoval(t *testing.T) {
	for name, block := range map[string]func(n *node){
		"the runtime fails": func(n *node) {
			n.cri.Fail("RemoveContainer", errBusy)
			n.cri.Fail("RemovePodSandbox", errBusy) // with the containers, which it removes first
		},
		"the runtime hangs": func(n *node) {
			n.cri.Hang("RemoveContainer")
			n.cri.Hang("RemovePodSandbox")
		},
		"the logs stay": func(n *node) { n.breaks("Remove", "1", errBusy) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := startNode(t)
				n.dispatcher.SetPod(staticPod("1"), file)
				n.wait(time.Second)
				block(n)
				n.dispatcher.RemovePod("1", file)
				n.dispatcher.SetPod(staticPod("2"), file)
				n.wait(10 * time.Second)
				if !n.running("2") {
					t.Fatalf("does not run 10 seconds after the earlier one was stopped: %+v", n.status("2"))
				}
				if n.isWanted("1") || n.published.said("1") != "nothing" {
					t.Errorf("the earlier one is mirrored: %v, reported: %q", n.isWanted("1"), n.published.said("1"))
				}
				n.cri.Hang("RemoveContainer")()
				n.cri.Hang("RemovePodSandbox")()
				n.cri.Fail("RemoveContainer", nil)
				n.cri.Fail("RemovePodSandbox", nil)
				n.breaks("Remove", "1", nil)
				n.wait(10 * time.Minute)
				if left := n.state(staticPod("1")); n.workers.Known("1") || len(left.Sandboxes)+len(left.Containers) > 0 {
					t.Errorf("what is left is never removed: %+v", left)
				}
			})
		})
	}
}

// TestAnEarlierManifestThatIsPutBackWaitsForItsSuccessor, whose pod has begun before all of the earlier one was
// removed.
func TestAnEarlierManifestThatIsPutBackWaitsForItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.dispatcher.SetPod(staticPod("1"), file)
		n.wait(time.Second)
		n.cri.Fail("RemovePodSandbox", errBusy)
		n.dispatcher.RemovePod("1", file)
		n.dispatcher.SetPod(staticPod("2"), file)
		n.wait(10 * time.Second)
		n.dispatcher.SetPod(staticPod("1"), file)
		n.wait(time.Minute)
		if !n.running("2") || len(n.alive(staticPod("1"), "c")) != 0 {
			t.Fatalf("running: 2 %v, 1 %v", n.running("2"), n.alive(staticPod("1"), "c"))
		}
		n.cri.Fail("RemovePodSandbox", nil)
		n.dispatcher.RemovePod("2", file)
		n.wait(time.Minute)
		if !n.running("1") || n.workers.Known("2") || !n.isWanted("1") {
			t.Fatalf("after the end of 2: %+v, mirrored %v, pods %v", n.status("1"), n.isWanted("1"), n.workers.UIDs())
		}
	})
}
