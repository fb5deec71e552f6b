package pods

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

// fakeDeaf is a program that ignores SIGTERM.
var fakeDeaf = fake.Program{StopDelay: time.Hour}

// TestPodsArePublishedBeforeTheMark: readers drop what an earlier podsync said once the new
// one has said that all is there. With the runtime away the pods are known, their states not.
func TestPodsArePublishedBeforeTheMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.Fail("ListContainers", errors.New("no runtime"))
		var atMark string
		n.dispatcher.progress.Synced = func() { atMark = n.published.said("a") }
		defer n.run()()
		p := testPod("a")
		p.Labels = map[string]string{"v": "1"}
		n.dispatcher.SetPod(p, api)
		n.dispatcher.SourceSynced(api)
		n.wait(time.Minute)
		if atMark != "1" {
			t.Fatalf("when all pods were to be reported, of this one was reported %q", atMark)
		}
		if n.reported.Load() {
			t.Fatal("its state is called reported, and was never read")
		}
		n.cri.Fail("ListContainers", nil)
		n.wait(20 * time.Second)
		if !n.reported.Load() {
			t.Fatal("its state was reported, and is not called reported")
		}
	})
}

// TestAPodThatCannotBeReadHoldsUpNoOther: what an earlier podsync said of pods that are gone is dropped, although the
// runtime fails or hangs for one pod.
func TestAPodThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	for name, breaks := range map[string]func(*node) (mend func()){
		"fails": func(n *node) func() {
			n.cri.Fail("PodSandboxStatus", errors.New("broken"))
			return func() { n.cri.Fail("PodSandboxStatus", nil) }
		},
		"hangs": func(n *node) func() { return n.cri.Hang("PodSandboxStatus") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, newRuntime())
				broken := testPod("broken")
				if _, _, err := n.cri.StartPod(t.Context(),
					fake.Pod{Namespace: broken.Namespace, Name: broken.Name, UID: string(broken.UID)}); err != nil {
					t.Fatal(err)
				}
				defer breaks(n)()
				defer n.run()()
				n.dispatcher.SetPod(broken, api)
				n.dispatcher.SourceSynced(api)
				n.wait(time.Minute)
				if n.reported.Load() {
					t.Fatal("no pod was read, and all are called reported")
				}
				n.dispatcher.SetPod(testPod("fine"), api)
				n.wait(2 * time.Second)
				if !n.reported.Load() {
					t.Fatal("a pod that cannot be read keeps the others from being called reported")
				}
			})
		})
	}
}

func TestANewVersionIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.apply(p)
		p = p.DeepCopy()
		p.Labels = map[string]string{"v": "2"}
		n.apply(p)
		if said := n.published.said("a"); said != "2" {
			t.Fatalf("reported %q", said)
		}
		n.apply(deleted(p, 30))
		if said := n.published.said("a"); said != "2 ends" {
			t.Fatalf("reported %q", said)
		}
	})
}

// TestAPodThatComesBackRuns: a list of an apiserver that is behind can take a pod away and
// the next one bring it again.
func TestAPodThatComesBackRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.apply(testPod("a"))
		n.dispatcher.RemovePod("a", api)
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(time.Minute)
		if !n.workers.Known("a") || !n.running("a") {
			t.Fatalf("known %v, status %+v", n.workers.Known("a"), n.statuses["a"])
		}
		if said := n.published.said("a"); said != "" {
			t.Fatalf("reported %q", said)
		}
		n.dispatcher.RemovePod("a", api)
		n.dispatcher.SetPod(testPod("a"), api)
		n.dispatcher.RemovePod("a", api)
		n.wait(time.Minute)
		if n.workers.Known("a") {
			t.Fatal("it was taken away last, and is known")
		}
	})
}

// TestForceDeletionDoesNotBeginTheGracePeriodAnew: the object of a pod that is being stopped
// may vanish at any time.
func TestForceDeletionDoesNotBeginTheGracePeriodAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fakeDeaf)
		defer n.run()()
		n.apply(testPod("a"))
		n.dispatcher.SetPod(deleted(testPod("a"), 30), api)
		n.wait(20 * time.Second)
		n.dispatcher.RemovePod("a", api)
		n.wait(15 * time.Second)
		if n.workers.Known("a") {
			t.Fatal("35 s after its deletion with a grace period of 30 s the pod is there")
		}
		if stops := n.cri.Calls("StopContainer"); len(stops) != 1 {
			t.Fatalf("stopped %d times", len(stops))
		}
	})
}

// TestOfAPodThatWasTakenAwayNothingIsWatched: the apiserver forbids it, and its containers may take their time to stop.
func TestOfAPodThatWasTakenAwayNothingIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fakeDeaf)
		defer n.run()()
		watched := func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.registered["a"]
		}
		n.apply(testPod("a"))
		n.apply(deleted(testPod("a"), 30))
		if !watched() {
			t.Fatal("a pod that only ends is forgotten")
		}
		n.dispatcher.RemovePod("a", api)
		n.wait(time.Second)
		if watched() || !n.workers.Known("a") {
			t.Fatalf("watched %t, known %t", watched(), n.workers.Known("a"))
		}
	})
}

// TestStoppingPodsyncIsNoFailure: it ends at once with a pod in its grace period and reports no
// failure, and the next podsync goes on.
func TestStoppingPodsyncIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri := newRuntime()
		cri.SetProgram("c", fakeDeaf)
		n := newNode(t, cri)
		stop := n.run()
		n.apply(testPod("a"))
		n.dispatcher.SetPod(deleted(testPod("a"), 30), api)
		n.wait(5 * time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second {
			t.Fatalf("ended after %v", took)
		}
		for len(n.events.Events) > 0 {
			if e := <-n.events.Events; strings.Contains(e, reasonFailedKillPod) {
				t.Fatalf("reported %q", e)
			}
		}
		next := newNode(t, cri)
		defer next.run()()
		next.dispatcher.SetPod(deleted(testPod("a"), 30), api)
		next.wait(40 * time.Second)
		if !next.final["a"] {
			t.Fatal("the stop does not go on")
		}
	})
}

// TestAPodThatHasEndedIsNotRefused: it asks for nothing any more, and what it held is given back.
func TestAPodThatHasEndedIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
		p.Status.Phase = v1.PodFailed
		n.dispatcher.SetPod(p, api)
		n.wait(time.Minute)
		if n.statuses["a"].Phase != v1.PodFailed || !n.released["a"] {
			t.Fatalf("phase %s, released %v", n.statuses["a"].Phase, n.released["a"])
		}
		if len(n.events.Events) != 0 {
			t.Fatalf("reported %q", <-n.events.Events)
		}
	})
}

// TestARuntimeThatStaysAwayIsNotAskedEverySecond by every pod.
func TestARuntimeThatStaysAwayIsNotAskedEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.Fail("ListContainers", errors.New("no runtime"))
		defer n.run()()
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(10 * time.Minute)
		if asked := len(n.cri.Calls("ListContainers")); asked < 40 || asked > 75 {
			t.Fatalf("asked %d times in ten minutes", asked)
		}
		n.cri.Fail("ListContainers", nil)
		n.wait(16 * time.Second)
		if !n.running("a") {
			t.Fatalf("status %+v", n.statuses["a"])
		}
	})
}
