package pods

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/admission"
)

// debugged is a newer version of a pod, with an ephemeral container.
func debugged(p *v1.Pod, name string) *v1.Pod {
	p = p.DeepCopy()
	p.Generation++
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{
		EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: name, Image: "busybox"}, TargetContainerName: "c",
	})
	return p
}

func (n *node) ephemeral(name string) v1.ContainerStatus {
	s, _ := n.Last("a")
	for _, c := range s.EphemeralContainerStatuses {
		if c.Name == name {
			return c
		}
	}
	return v1.ContainerStatus{}
}

func (n *node) created(name string) (configs []*runtimeapi.ContainerConfig) {
	for _, c := range n.cri.Calls("CreateContainer") {
		if config := c.Request.(*runtimeapi.CreateContainerRequest).Config; config.Metadata.Name == name {
			configs = append(configs, config)
		}
	}
	return configs
}

// TestAnEphemeralContainerRunsOnce beside the others, and ends with the pod.
func TestAnEphemeralContainerRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.apply(p)
		n.apply(debugged(p, "debug"))
		s := n.ephemeral("debug")
		if s.State.Running == nil || s.Ready || !n.running("a") {
			t.Fatalf("status %+v", s)
		}
		if err := n.cri.ExitContainer(strings.TrimPrefix(s.ContainerID, "containerd://"), 1); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(5 * time.Minute)
		if s := n.ephemeral("debug"); s.State.Terminated == nil || s.State.Terminated.ExitCode != 1 || !n.running("a") {
			t.Fatalf("status %+v", s)
		}
		if len(n.created("debug")) != 1 {
			t.Fatal("it was started again")
		}
		second := debugged(debugged(p, "debug"), "more")
		n.apply(second)
		if s := n.ephemeral("more"); s.State.Running == nil {
			t.Fatalf("status %+v", s)
		}
		n.dispatcher.SetPod(deleted(second, 5), api)
		n.wait(30 * time.Second)
		if s := n.ephemeral("more"); !n.final["a"] || s.State.Terminated == nil {
			t.Fatalf("final %v, status %+v", n.final["a"], s)
		}
	})
}

// TestTooManyEphemeralContainers: one waits that the runtime could not list with the others.
func TestTooManyEphemeralContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		for i := range admission.MaxContainers - 2 {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: fmt.Sprint("i", i), Image: "busybox"})
		}
		n.apply(p) // its first init container runs
		p = debugged(debugged(p, "debug"), "more")
		for i := range p.Spec.EphemeralContainers {
			p.Spec.EphemeralContainers[i].TargetContainerName = ""
		}
		n.apply(p)
		if s := n.ephemeral("more"); s.State.Waiting == nil || len(n.created("more")) != 0 ||
			!strings.Contains(s.State.Waiting.Message, "spec.ephemeralContainers have 2001 containers together") {
			t.Errorf("one too many: %+v", s)
		}
		if len(n.created("debug")) != 1 {
			t.Errorf("the last that may be: %+v", n.ephemeral("debug"))
		}
	})
}

// TestAPodDoesNotWaitForAnEphemeralContainersImage.
func TestAPodDoesNotWaitForAnEphemeralContainersImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.apply(p)
		n.mu.Lock()
		n.slowImage = "slow"
		n.mu.Unlock()
		slow := debugged(p, "debug")
		slow.Spec.EphemeralContainers[0].Image = "slow"
		n.cri.AddImage("slow")
		n.apply(slow)
		id := strings.TrimPrefix(n.status("a").ContainerStatuses[0].ContainerID, "containerd://")
		if err := n.cri.ExitContainer(id, 1); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(time.Second)
		if !n.running("a") || n.status("a").ContainerStatuses[0].RestartCount != 1 {
			t.Fatalf("the container that exited was not started again: %+v", n.status("a").ContainerStatuses)
		}
		n.wait(slowPull)
		if s := n.ephemeral("debug"); s.State.Running == nil {
			t.Fatalf("status %+v", s)
		}
	})
}

// TestARefusedEphemeralContainerDoesNotHurtThePod.
func TestARefusedEphemeralContainerDoesNotHurtThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		n.apply(p)
		refused := debugged(debugged(p, "debug"), "fine")
		refused.Spec.EphemeralContainers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
		n.dispatcher.SetPod(refused, api)
		n.wait(time.Minute)
		if s := n.ephemeral("debug"); s.State.Waiting == nil ||
			!strings.Contains(s.State.Waiting.Message, "spec.ephemeralContainers[0].resources") {
			t.Fatalf("status %+v", s)
		}
		if len(n.created("debug")) != 0 || n.ephemeral("fine").State.Running == nil || !n.running("a") {
			t.Fatalf("status %+v", n.status("a"))
		}
	})
}

// TestAForbiddenEphemeralContainerDoesNotStart, and the pod runs on.
func TestAForbiddenEphemeralContainerDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.judge.ephemeral = func(c *v1.Container) admission.Result {
			if c.Name != "debug" {
				return admission.Result{}
			}
			return admission.Result{Reason: "No", Message: "it may not"}
		}
		defer n.run()()
		p := testPod("a")
		n.apply(p)
		p = debugged(p, "debug")
		n.dispatcher.SetPod(p, api)
		n.wait(time.Minute)
		s := n.ephemeral("debug")
		if s.State.Waiting == nil || s.State.Waiting.Reason != reasonCreateContainerConfigError ||
			s.State.Waiting.Message != "it may not" || !n.running("a") {
			t.Fatalf("status %+v", s)
		}
		if created := n.created("debug"); len(created) != 0 {
			t.Fatalf("it was created %d times", len(created))
		}
		m := n.workers.metrics
		if starts := testutil.ToFloat64(m.containers.WithLabelValues("ephemeral_container")); starts != 0 {
			t.Fatalf("it was to be started %v times: the pod does not come to rest", starts)
		}
		n.dispatcher.SetPod(debugged(p, "other"), api)
		n.wait(time.Minute)
		if s := n.ephemeral("other"); s.State.Running == nil {
			t.Fatalf("another one does not start: %+v", s)
		}
	})
}
