package pods

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/admission"
)

// sent is the version of a pod that the other services got last.
func (n *published) sent(p *v1.Pod) *v1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last[p.UID]
}

// TestPodsThatHaveEndedTakeLittleRoom: a user may have thousands of large pods rejected by the node, which wait until
// they are deleted.
func TestPodsThatHaveEndedTakeLittleRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		large := testPod("rejected")
		large.Annotations = map[string]string{"large": strings.Repeat("x", 200<<10)}
		large.Spec.Containers[0].Args = []string{strings.Repeat("y", 1<<20)}
		n.admission.reject["rejected"] = admission.Result{Reason: "NodePorts", Message: "taken"}
		n.apply(large)
		if got := n.published.sent(large); got.Size() > 1<<10 || got.Name != large.Name || got.Namespace != large.Namespace ||
			len(got.Spec.Containers) != 0 {
			t.Errorf("of a rejected pod the others get %d bytes: %.300v", got.Size(), got)
		}

		ran := large.DeepCopy()
		ran.UID, ran.Name = "a", "pod-a"
		ran.Spec.RestartPolicy = v1.RestartPolicyNever
		n.apply(ran)
		if got := n.published.sent(ran); got.Size() < 1<<20 {
			t.Errorf("of a pod that runs the others get %d bytes", got.Size())
		}
		n.exit("c")
		n.wait(time.Second)
		ended := ran.DeepCopy()
		ended.Status = n.status("a")
		n.apply(ended)
		got := n.published.sent(ran)
		if ended.Status.Phase != v1.PodFailed || got.Size() > 1<<10 || len(got.Spec.Containers) != 1 ||
			got.Spec.Containers[0].Name != "c" {
			t.Errorf("of a pod that is %s the others get %d bytes: %.300v", ended.Status.Phase, got.Size(), got)
		}
	})
}

func TestSmallPodsAreToldWhole(t *testing.T) {
	p := testPod("a")
	p.Labels = map[string]string{"a": "b"}
	if got := forOthers(p, true); got != p {
		t.Errorf("%v", got)
	}
	p.Annotations = map[string]string{"large": strings.Repeat("x", maxEnded)}
	if got := forOthers(p, false); got != p {
		t.Errorf("of a pod that has not ended: %v", got)
	}
	p.Status.Phase = v1.PodFailed
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c"}}
	p.Spec.Containers[0].Image = strings.Repeat("x", maxImage+1)
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		Name: "e", Command: []string{"sh"}}}}
	got := forOthers(p, false)
	if got.Size() > 1<<10 || got.Spec.Containers[0].Image != "" || got.Spec.EphemeralContainers[0].Name != "e" {
		t.Errorf("%v", got)
	}
}
