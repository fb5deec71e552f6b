package pods

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
)

// twoContainers is a pod whose containers are "c" and "evil".
func twoContainers() *v1.Pod {
	p := testPod("a")
	second := *p.Spec.Containers[0].DeepCopy()
	second.Name = "evil"
	p.Spec.Containers = append(p.Spec.Containers, second)
	return p
}

// evilWaits demands that the container called evil waits with the message, and that its neighbour runs.
func (n *node) evilWaits(t *testing.T, p *v1.Pod, message string) {
	t.Helper()
	for _, s := range n.status(p.UID).ContainerStatuses {
		switch waiting := s.State.Waiting; {
		case s.Name != "evil" && s.State.Running == nil:
			t.Errorf("its neighbour does not run: %+v", s)
		case s.Name == "evil" &&
			(waiting == nil || waiting.Reason != reasonCreateContainerConfigError ||
				!strings.Contains(waiting.Message, message)):
			t.Errorf("the container is %+v, want it to wait with %q", s.State, message)
		case s.Name == "evil" && s.RestartCount != 0:
			t.Errorf("it was restarted %d times", s.RestartCount)
		}
	}
}

func TestAContainerThatMayNotRunAsItsImageSaysIsNotCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.judge.image = func(c *v1.Container) admission.Result {
			if c.Name == "evil" {
				return admission.Result{Reason: "No", Message: "its image's user is the node agent's"}
			}
			return admission.Result{}
		}
		defer n.run()()
		p := twoContainers()
		n.dispatcher.SetPod(p, api)
		n.wait(time.Minute)
		n.evilWaits(t, p, "its image's user")
		if created := n.created("evil"); len(created) != 0 {
			t.Errorf("it was created %d times", len(created))
		}
	})
}

// What the runtime made of an image is looked at before any process of it runs; nothing is left of a container that is
// refused, and the pod may be deleted.
func TestAContainerThatIsRefusedAfterItsCreationIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		checked := 0
		n.judge.created = func(c *v1.Container) runtime.Check {
			if c.Name != "evil" {
				return nil
			}
			return func(context.Context, string) error {
				checked++
				return &runtime.RefusedError{Message: "it is in the group 47100"}
			}
		}
		defer n.run()()
		p := twoContainers()
		n.dispatcher.SetPod(p, api)
		n.wait(10 * time.Minute)
		n.evilWaits(t, p, "it is in the group 47100")
		created, removed := len(n.created("evil")), len(n.cri.Calls("RemoveContainer"))
		if created == 0 || created != removed || checked != created {
			t.Errorf("created %d times, checked %d times, removed %d times", created, checked, removed)
		}
		if created > 61 {
			t.Errorf("created %d times in 10 minutes, want what cannot be created to be tried each 10 s", created)
		}
		if started := len(n.cri.Calls("StartContainer")); started != 1 {
			t.Errorf("%d containers were started, want the neighbour alone", started)
		}
		n.dispatcher.SetPod(deleted(p, 1), api)
		n.wait(time.Minute)
		if !n.final["a"] {
			t.Error("the pod does not end")
		}
	})
}
