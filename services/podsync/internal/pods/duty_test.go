package pods

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// withSibling is a pod with a volume and a second container.
func withSibling() *v1.Pod {
	p := testPod("a")
	p.Spec.Volumes = []v1.Volume{{Name: "token"}}
	p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "sibling", Image: "busybox"})
	return p
}

// refreshes is how often the pod's volumes were refreshed.
func (n *node) refreshes() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refreshed["a"]
}

// container is the one of a name in the pod's last status.
func (n *node) container(name string) v1.ContainerStatus {
	n.t.Helper()
	for _, c := range n.status("a").ContainerStatuses {
		if c.Name == name {
			return c
		}
	}
	n.t.Fatalf("no container %s in %+v", name, n.status("a"))
	return v1.ContainerStatus{}
}

// exit ends a container, as it would end by itself.
func (n *node) exit(name string) {
	n.t.Helper()
	if err := n.cri.ExitContainer(strings.TrimPrefix(n.container(name).ContainerID, "containerd://"), 1); err != nil {
		n.t.Fatal(err)
	}
	n.workers.Wake("a", "test")
}

// TestVolumesAreRefreshedBesideASiblingThatCannotStart: the tokens of what runs must not expire for another's sake,
// neither when each look fails nor when one sync lasts.
func TestVolumesAreRefreshedBesideASiblingThatCannotStart(t *testing.T) {
	for name, hinder := range map[string]func(n *node){
		"each look fails": func(n *node) {
			n.breaks("Container", "a", errors.New("no space left on device"))
			n.exit("sibling")
		},
		"a sync lasts": func(n *node) {
			n.mu.Lock()
			n.slow["a"] = true // the image's pull never ends
			n.mu.Unlock()
			n.exit("sibling")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := startNode(t)
				n.apply(withSibling())
				hinder(n)
				for range 6 * 60 {
					n.wait(time.Minute)
					n.drain() // there is an event for each failure
				}
				if n.container("c").State.Running == nil || n.container("sibling").State.Running != nil {
					t.Fatalf("containers %+v", n.status("a").ContainerStatuses)
				}
				// Each 60 to 90 s.
				if got := n.refreshes(); got < 6*3600/90 || got > 6*3600/60 {
					t.Errorf("refreshed %d times in 6 h", got)
				}
				before := n.refreshes()
				n.workers.Refresh("a", "object")
				n.wait(time.Second)
				if got := n.refreshes(); got != before+1 {
					t.Errorf("refreshed %d times after a change, want once", got-before)
				}
				n.dispatcher.SetPod(deleted(withSibling(), 5), api)
				n.wait(time.Minute)
				before = n.refreshes()
				n.wait(time.Hour)
				if !n.final["a"] || n.refreshes() != before {
					t.Errorf("given up: %v; refreshed %d times after its end", n.final["a"], n.refreshes()-before)
				}
			})
		})
	}
}

// TestAReplacedSandboxGoesBesideASiblingThatCannotStart: it holds an address and a name.
func TestAReplacedSandboxGoesBesideASiblingThatCannotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.apply(withSibling())
		n.breaks("Container", "a", errors.New("no space left on device"))
		before, err := n.dispatcher.deps.Runtime.State(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := n.cri.StopSandbox(before.Sandboxes[0].ID); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(time.Minute)
		state, err := n.dispatcher.deps.Runtime.State(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for i := range state.Containers { // as the clean-up of dead containers does
			if err := n.dispatcher.deps.Runtime.RemoveContainer(t.Context(), state.Containers[i].ID); err != nil {
				t.Fatal(err)
			}
		}
		n.wait(time.Minute)
		if state, err = n.dispatcher.deps.Runtime.State(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if len(state.Sandboxes) != 1 || state.Sandboxes[0].ID == before.Sandboxes[0].ID {
			t.Errorf("sandboxes %+v", state.Sandboxes)
		}
	})
}
