package pods

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAJobIsNotOverBecauseItIsResized: its container obeys SIGTERM and exits with 0, which its policy takes as the end
// of its work. It starts again also if that does not succeed at once.
func TestAJobIsNotOverBecauseItIsResized(t *testing.T) {
	for name, test := range map[string]struct {
		breaks, again func(n *resizedNode, p *v1.Pod)
	}{
		"nothing fails": {func(*resizedNode, *v1.Pod) {}, func(*resizedNode, *v1.Pod) {}},
		"the start fails": {
			func(n *resizedNode, _ *v1.Pod) { n.breaks("Container", "a", errors.New("no space left on device")) },
			func(n *resizedNode, _ *v1.Pod) { n.breaks("Container", "a", nil) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newResizedNode(t)
				p := restarting(resizedPod(testPod("a"), sizes("100m", "", "", "")), 0, v1.ResourceCPU)
				p.Spec.RestartPolicy = v1.RestartPolicyOnFailure
				n.apply(p)
				test.breaks(n, p)
				larger := resizedPod(p, sizes("200m", "", "", ""))
				n.resize(larger)
				n.wait(time.Minute)
				test.again(n, larger)
				n.wait(time.Minute)
				if s := n.status("a"); s.Phase != v1.PodRunning {
					t.Errorf("the pod is %s", s.Phase)
				}
				if len(n.ids("a")) != 1 {
					t.Fatal("its container does not run")
				}
				n.want("has", n.has("a", "c"), "memory=none cpu=none shares=204")
				n.want("restart count", n.container("c").RestartCount, int32(1))
				n.crash(p, "c", 0) // now its work is done
				n.wait(time.Second)
				if s := n.status("a"); s.Phase != v1.PodSucceeded {
					t.Errorf("the pod has done its work and is %s", s.Phase)
				}
			})
		})
	}
}

// TestAJobThatEndsWhileItIsResized ends: it waits to start again.
func TestAJobThatEndsWhileItIsResized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		p := restarting(resizedPod(testPod("a"), sizes("100m", "", "", "")), 0, v1.ResourceCPU)
		p.Spec.RestartPolicy = v1.RestartPolicyOnFailure
		n.apply(p)
		n.breaks("Container", "a", errors.New("no space left on device"))
		larger := resizedPod(p, sizes("200m", "", "", ""))
		n.resize(larger)
		n.wait(time.Second)
		deleted := larger.DeepCopy()
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(1))
		n.apply(deleted)
		n.wait(5 * time.Second)
		if s := n.status("a"); s.ContainerStatuses[0].State.Terminated == nil {
			t.Errorf("its container is %+v", s.ContainerStatuses[0].State)
		}
	})
}

// TestAJobThatIsResizedTwice: the second resize comes while the container waits for its image to start again.
func TestAJobThatIsResizedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		n.node.mu.Lock()
		n.slowImage = "large"
		n.node.mu.Unlock()
		n.cri.AddImage("large")
		p := restarting(resizedPod(testPod("a"), sizes("100m", "", "", "")), 0, v1.ResourceCPU)
		p.Spec.RestartPolicy, p.Spec.Containers[0].Image = v1.RestartPolicyOnFailure, "large"
		n.apply(p)
		n.wait(slowPull)
		n.resize(resizedPod(p, sizes("200m", "", "", "")))
		n.wait(time.Second)
		n.want("running", len(n.ids("a")), 0)
		n.resize(resizedPod(p, sizes("300m", "", "", "")))
		n.wait(2 * slowPull)
		n.want("has", n.has("a", "c"), "memory=none cpu=none shares=307")
		if s := n.status("a"); s.Phase != v1.PodRunning {
			t.Errorf("the pod is %s", s.Phase)
		}
	})
}
