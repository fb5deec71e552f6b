package pods

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
)

// endSandboxes ends the process of each sandbox of the pod, as a container can that shares its process namespace.
func (n *node) endSandboxes() {
	n.t.Helper()
	list, err := n.cri.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, s := range list.GetItems() {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			if err := n.cri.StopSandbox(s.GetId()); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	n.workers.Wake("a", "test")
}

// TestAPodThatEndsItsSandboxAgainAndAgainWaits, although it has an init container, which each new sandbox starts again.
func TestAPodThatEndsItsSandboxAgainAndAgainWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.InitContainers = []v1.Container{{Name: "i", Image: "busybox"}}
		n.apply(p)
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			n.endSandboxes()
			n.wait(2 * time.Second)
		}
		if made := len(n.cri.Calls("RunPodSandbox")); made < freeRestarts || made > freeRestarts+7 {
			t.Errorf("%d sandboxes in 10 minutes", made)
		}
		if held := countEvents(n.drain(), "Back-off 40s restarting all of pod ns/pod-a"); held != 1 {
			t.Errorf("%d events say that it waits for 40s", held)
		}
		n.wait(6 * time.Minute)
		if s := n.status("a"); s.InitContainerStatuses[0].State.Running == nil {
			t.Errorf("it does not begin again: %+v", s.InitContainerStatuses)
		}
	})
}

// TestAPodWhoseContainersAllBeginAnewAgainAndAgainWaits: a restart rule has no back-off.
func TestAPodWhoseContainersAllBeginAnewAgainAndAgainWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		podtest.SetRestartRule(&p.Spec.Containers[0], v1.ContainerRestartRuleActionRestartAllContainers, 42)
		n.apply(p)
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			if s := n.status("a").ContainerStatuses[0]; s.State.Running != nil {
				if err := n.cri.ExitContainer(strings.TrimPrefix(s.ContainerID, "containerd://"), 42); err != nil {
					t.Fatal(err)
				}
				n.workers.Wake("a", "test")
			}
			n.wait(2 * time.Second)
		}
		if made := len(n.cri.Calls("StartContainer")); made < freeRestarts || made > freeRestarts+7 {
			t.Errorf("%d starts in 10 minutes", made)
		}
	})
}

func countEvents(events []string, part string) (count int) {
	for _, e := range events {
		if strings.Contains(e, part) {
			count++
		}
	}
	return count
}
