package pods

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

func TestAPodStartsIsReportedAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.apply(p)
		if !n.running("a") {
			t.Fatalf("status %+v", n.statuses["a"])
		}
		if want := []v1.PodPhase{v1.PodPending, v1.PodRunning}; !slices.Equal(n.history["a"], want) {
			t.Fatalf("went through %v", n.history["a"])
		}
		n.dispatcher.SetPod(deleted(p, 5), api)
		n.wait(time.Minute)
		if !n.final["a"] {
			t.Fatal("the pod was not given up after its containers stopped")
		}
		n.dispatcher.RemovePod("a", api)
		n.wait(time.Second)
		left, err := n.dispatcher.deps.Runtime.State(t.Context(), "a")
		if err != nil || len(left.Sandboxes)+len(left.Containers) != 0 {
			t.Fatalf("left %+v, %v", left, err)
		}
		if n.workers.Known("a") {
			t.Fatal("its worker is still there")
		}
	})
}

func TestARestartOfPodsyncTouchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri := newRuntime()
		p := testPod("a")
		first := newNode(t, cri)
		stop := first.run()
		first.dispatcher.SetPod(p, api)
		first.wait(time.Second)
		stop()

		p = p.DeepCopy()
		p.Status = first.statuses["a"]
		cri.ForgetCalls()
		second := newNode(t, cri)
		defer second.run()()
		second.dispatcher.SetPod(p, api)
		second.wait(10 * time.Minute)
		if made := changes(cri); len(made) != 0 {
			t.Fatalf("the restart made %v", made)
		}
		if !second.running("a") {
			t.Fatalf("status %+v", second.statuses["a"])
		}
	})
}

func TestACrashingContainerBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cri := newRuntime()
		cri.SetProgram("c", fake.Program{Lifetime: time.Second, ExitCode: 1})
		n := newNode(t, cri)
		defer n.run()()
		n.dispatcher.SetPod(testPod("a"), api)
		wake := time.NewTicker(500 * time.Millisecond) // as pleg would
		defer wake.Stop()
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			<-wake.C
			n.workers.Wake("a", "test")
		}
		synctest.Wait()
		// Each life takes a second. The first restart is made at once, later ones after a wait that doubles up to 5 m;
		// what is due is noticed at the next wake. The seventh wait would end after ten minutes.
		waits := []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second,
			160 * time.Second}
		starts := cri.Calls("StartContainer")
		if len(starts) != len(waits)+1 {
			t.Fatalf("started %d times in ten minutes, want %d", len(starts), len(waits)+1)
		}
		for i, want := range waits {
			waited := starts[i+1].At.Sub(starts[i].At) - time.Second
			if waited < want || waited > want+time.Second {
				t.Errorf("start %d came %v after the end before, want %v", i+2, waited, want)
			}
		}
		s := n.statuses["a"].ContainerStatuses[0]
		if s.State.Waiting == nil || s.State.Waiting.Reason != reasonCrashLoopBackOff || s.RestartCount < 5 {
			t.Fatalf("status %+v", s)
		}
	})
}

func TestAHungVolumeHoldsUpNoOtherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.hung["hung"] = true
		defer n.run()()
		n.dispatcher.SetPod(testPod("hung"), api)
		n.apply(testPod("a"))
		if !n.running("a") || n.running("hung") {
			t.Fatalf("statuses %+v", n.statuses)
		}
		// And its deletion is not held up either.
		n.dispatcher.SetPod(deleted(testPod("hung"), 1), api)
		n.wait(10 * time.Second)
		if !n.final["hung"] {
			t.Fatal("the deletion waits for the volume")
		}
	})
}

func TestAContainerStartsAgainWithoutTheApiserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.Volumes = []v1.Volume{{Name: "access"}}
		n.apply(p)
		n.mu.Lock()
		n.hung["a"] = true // whatever asks the apiserver waits
		n.mu.Unlock()
		n.wait(5 * time.Minute) // refreshes hang meanwhile
		id := strings.TrimPrefix(n.statuses["a"].ContainerStatuses[0].ContainerID, "containerd://")
		if err := n.cri.ExitContainer(id, 1); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		if !n.running("a") || n.statuses["a"].ContainerStatuses[0].RestartCount != 1 {
			t.Fatalf("status %+v", n.statuses["a"].ContainerStatuses)
		}
	})
}

func TestARestartCountThatOnlyTheLogsKnowGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.logged = 7
		defer n.run()()
		n.apply(testPod("a"))
		if got := n.statuses["a"].ContainerStatuses[0].RestartCount; got != 7 {
			t.Fatalf("restart count %d, want 7", got)
		}
		id := strings.TrimPrefix(n.statuses["a"].ContainerStatuses[0].ContainerID, "containerd://")
		if err := n.cri.ExitContainer(id, 1); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		if got := n.statuses["a"].ContainerStatuses[0].RestartCount; got != 8 { // and the logs are not asked again
			t.Fatalf("restart count %d, want 8", got)
		}
	})
}

func TestVolumesAreRefreshedWhenTheirObjectsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.Volumes = []v1.Volume{{Name: "config"}}
		n.apply(p)
		want := func(times int, why string) {
			t.Helper()
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.refreshed["a"] != times {
				t.Fatalf("%s: refreshed %d times, want %d", why, n.refreshed["a"], times)
			}
		}
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		want(0, "nothing changed")
		n.workers.Refresh("a", "object")
		n.wait(time.Second)
		want(1, "an object changed")
		relabelled := p.DeepCopy()
		relabelled.Labels = map[string]string{"new": "label"}
		n.apply(relabelled)
		want(2, "the pod's labels changed")
		n.wait(4 * time.Minute) // twice what a sync and a refresh wait at most
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.refreshed["a"] < 3 {
			t.Fatal("nothing is refreshed by itself, as tokens must be")
		}
	})
}

func TestADeletionOvertakesAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.slow["a"] = true
		defer n.run()()
		n.apply(testPod("a"))
		n.dispatcher.SetPod(deleted(testPod("a"), 1), api)
		n.wait(10 * time.Second)
		if !n.final["a"] {
			t.Fatal("the deletion waits for the pull")
		}
		if started := n.cri.Calls("StartContainer"); len(started) != 0 {
			t.Fatalf("started after its deletion: %v", started)
		}
	})
}

func TestARefusedPodSaysSoAndHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		refused := testPod("refused")
		refused.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
		n.dispatcher.SetPod(refused, api)
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(5 * time.Minute)
		if !n.running("a") {
			t.Fatal("the neighbour does not run")
		}
		waiting := n.statuses["refused"].ContainerStatuses[0].State.Waiting
		if waiting == nil || waiting.Reason != reasonCreateContainerConfigError ||
			!strings.Contains(waiting.Message, "spec.containers[0].resources") {
			t.Fatalf("waiting %+v", waiting)
		}
		reported := 0
		for len(n.events.Events) > 0 {
			if e := <-n.events.Events; strings.HasPrefix(e, "Warning Failed Error: ") {
				reported++
			}
		}
		if reported != 1 {
			t.Fatalf("reported %d times in one generation", reported)
		}
	})
}

func TestAPodWhoseObjectVanishesIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.apply(testPod("a"))
		n.dispatcher.RemovePod("a", api)
		n.wait(time.Minute)
		if n.workers.Known("a") {
			t.Fatal("its worker is still there")
		}
		left, err := n.dispatcher.deps.Runtime.State(t.Context(), "a")
		if err != nil || len(left.Sandboxes)+len(left.Containers) != 0 {
			t.Fatalf("left %+v, %v", left, err)
		}
	})
}

func TestAFailedSandboxIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.Fail("RunPodSandbox", errors.New("no network"))
		defer n.run()()
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(5 * time.Second)
		if n.running("a") {
			t.Fatal("runs without a sandbox")
		}
		failed := float64(len(n.cri.Calls("RunPodSandbox")))
		n.cri.Fail("RunPodSandbox", nil)
		n.wait(5 * time.Second)
		if !n.running("a") {
			t.Fatalf("status %+v", n.statuses["a"])
		}
		m := n.workers.metrics
		if all, errors := testutil.ToFloat64(m.sandboxes), testutil.ToFloat64(m.sandboxErrors); failed == 0 ||
			all != failed+1 || errors != failed {
			t.Errorf("%v sandboxes were to be started and %v could not be, want %v and %v", all, errors, failed+1,
				failed)
		}
	})
}

func TestStartsOfContainersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.Fail("StartContainer", errors.New("no such file"))
		defer n.run()()
		n.apply(testPod("a"))
		failed := float64(len(n.cri.Calls("StartContainer")))
		n.cri.Fail("StartContainer", nil)
		n.wait(time.Minute)
		if !n.running("a") {
			t.Fatalf("status %+v", n.statuses["a"])
		}
		m := n.workers.metrics
		all, errors := testutil.ToFloat64(m.containers.WithLabelValues("container")), testutil.ToFloat64(
			m.containerErrors.WithLabelValues("container", reasonRunContainerError),
		)
		if failed == 0 || all != failed+1 || errors != failed || testutil.CollectAndCount(m.containerErrors) != 1 {
			t.Errorf("%v containers were to be started and %v could not be, want %v and %v", all, errors, failed+1,
				failed)
		}
	})
}
