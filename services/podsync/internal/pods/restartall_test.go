package pods

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
)

// TestAllContainersBeginAnew in the same sandbox when one ends so that it asks for it.
func TestAllContainersBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "d", Image: "busybox"})
		podtest.SetRestartRule(&p.Spec.Containers[0], v1.ContainerRestartRuleActionRestartAllContainers, 42)
		n.apply(p)
		id := strings.TrimPrefix(n.status("a").ContainerStatuses[0].ContainerID, "containerd://")
		if err := n.cri.ExitContainer(id, 42); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(5 * time.Second)
		s := n.status("a")
		for _, c := range s.ContainerStatuses {
			if c.State.Running == nil || c.RestartCount != 1 {
				t.Fatalf("%s: %+v", c.Name, c)
			}
		}
		if made := len(n.cri.Calls("RunPodSandbox")); made != 1 || s.Phase != v1.PodRunning {
			t.Fatalf("%d sandboxes, phase %s", made, s.Phase)
		}
		n.wait(10 * time.Minute)
		if started := len(n.cri.Calls("StartContainer")); started != 4 {
			t.Fatalf("%d starts: it does not come to rest", started)
		}
	})
}
