package pods

import (
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

// errStopSignal is containerd's answer for an image whose STOPSIGNAL it cannot parse.
var errStopSignal = errors.New(`failed to parse stop signal "SIGNOT"`)

// TestAContainerThatCannotBeStoppedEndsWithItsSandbox, and does not keep its pod.
func TestAContainerThatCannotBeStoppedEndsWithItsSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{StopErr: errStopSignal})
		defer n.run()()
		n.apply(testPod("a"))
		n.dispatcher.SetPod(deleted(testPod("a"), 30), api)
		n.wait(5 * time.Second)
		if !n.final["a"] || n.status("a").ContainerStatuses[0].State.Terminated == nil {
			t.Fatalf("the pod stays: %+v", n.status("a").ContainerStatuses)
		}
		if stops := len(n.cri.Calls("StopContainer")); stops != 1 {
			t.Errorf("stopped %d times", stops)
		}
		reported := func(e string) bool {
			return strings.HasPrefix(e, "Warning FailedKillPod error killing pod: ") &&
				strings.Contains(e, errStopSignal.Error())
		}
		if events := n.drain(); !slices.ContainsFunc(events, reported) {
			t.Errorf("not reported: %q", events)
		}
	})
}

// TestASidecarWaitsForAContainerThatCannotBeStopped as long as the grace period lasts, since that
// container runs on and needs it.
func TestASidecarWaitsForAContainerThatCannotBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.cri.SetProgram("c", fake.Program{StopErr: errStopSignal})
		defer n.run()()
		p := testPod("a")
		p.Spec.InitContainers = append(p.Spec.InitContainers, sidecar("s"))
		n.dispatcher.SetPod(p, api)
		n.wait(5 * time.Second)
		began := time.Now()
		n.dispatcher.SetPod(deleted(p, 10), api)
		n.wait(9 * time.Second)
		if stopped := n.cri.Calls("StopPodSandbox"); len(stopped) != 0 {
			t.Fatalf("the sandbox was stopped %v after the deletion", stopped[0].At.Sub(began))
		}
		n.wait(5 * time.Second)
		if !n.final["a"] {
			t.Fatal("the pod stays")
		}
		stops := n.cri.Calls("StopContainer")
		if len(stops) != 2 {
			t.Fatalf("%d stops", len(stops))
		}
		last := stops[1].Request.(*runtimeapi.StopContainerRequest)
		if after := stops[1].At.Sub(began); after != 10*time.Second || last.Timeout != int64(minGrace/time.Second) {
			t.Fatalf("the sidecar was stopped after %v, with %d s", after, last.Timeout)
		}
	})
}

// TestASandboxThatDiedIsStoppedWhenItsPodEnds, once a podsync: a reboot ends sandboxes without
// taking their network down, and that it was taken down cannot be seen.
func TestASandboxThatDiedIsStoppedWhenItsPodEnds(t *testing.T) {
	for name, status := range map[string]v1.PodStatus{
		"running when the machine went down": {Phase: v1.PodRunning}, "ended before": {Phase: v1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cri := newRuntime()
				first := newNode(t, cri)
				stop := first.run()
				p := testPod("a")
				p.Spec.RestartPolicy = v1.RestartPolicyNever
				first.dispatcher.SetPod(p, api)
				first.wait(5 * time.Second)
				state, err := first.dispatcher.deps.Runtime.State(t.Context(), "a")
				if err != nil || len(state.Sandboxes) != 1 {
					t.Fatalf("state %+v, %v", state, err)
				}
				stop()
				if err := cri.StopSandbox(state.Sandboxes[0].ID); err != nil {
					t.Fatal(err)
				}
				second := newNode(t, cri)
				defer second.run()()
				p = p.DeepCopy()
				p.Status = status
				second.dispatcher.SetPod(p, api)
				second.wait(time.Hour)
				stopped := cri.Calls("StopPodSandbox")
				if len(stopped) != 1 ||
					stopped[0].Request.(*runtimeapi.StopPodSandboxRequest).PodSandboxId != state.Sandboxes[0].ID {
					t.Errorf("stopped %v, want the sandbox, once", stopped)
				}
				if !second.released["a"] {
					t.Error("the pod has not ended")
				}
			})
		})
	}
}
