package resize

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/resizing"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestResize makes pods of each kind larger and smaller, and kills podsync at that moment. The kernel enforces what is
// asked for, and only a container whose policy says so starts again.
func TestResize(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	upAndDown(t, func(s *scene.Scene) { s.Signal(t, syscall.SIGKILL, role.Podsync) })
}

// TestResizeBeforeTheStart resizes a container that has not started, since an init container runs. The cgroup of the
// pod changes at once.
func TestResizeBeforeTheStart(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s, name := early(t)
	scene.Await(t, scene.Patience, "the resources to agree", func() error { return s.AgreeOnResources(name) })
}

// early resizes the container of a pod that waits for an init container, and that container alone. The cgroup of the
// pod is to shrink.
func early(t *testing.T) (s *scene.Scene, name string) {
	t.Helper()
	s = scene.New(t)
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.unready })
	p := kinds[i].pod(s, kinds[i].name, least)
	setLimits(&p.Spec.Containers[0], most)
	createPods(s, nil, []string{p.Name}, p)
	s.Resize(p.Name, func(spec *corev1.PodSpec) { setLimits(&spec.Containers[0], least) })
	s.Wait(scene.Patience, "the resize", s.AreResized(p.Name))
	return s, p.Name
}

// upAndDown resizes pods of each kind and has something disturb that.
func upAndDown(t *testing.T, disturb func(*scene.Scene)) {
	t.Helper()
	s := scene.New(t)
	names := createAll(s, 1, func() int64 { return least + 1 })
	for _, size := range []int64{most, least} {
		for i, name := range names {
			s.Resize(name, kinds[i].resize(func() int64 { return size }))
		}
		disturb(s)
		s.Wait(scene.Patience, fmt.Sprintf("the resize to size %d", size), s.AreResized(names...))
		scene.Await(t, scene.Patience, "the resources to agree", func() error { return s.AgreeOnResources(names...) })
	}
	waits(s, names)
	v := s.Record.View()
	for i, name := range names {
		changes := 0
		if kinds[i].restarts != "" {
			changes = 2
		}
		keepsContainers(s, &kinds[i], v.Pod(s.Namespace, name), changes)
	}
	for _, reason := range []string{"ResizeStarted", "ResizeCompleted"} {
		s.Wait(scene.Patience, "the Event of a resize", s.HasEvent(names[0], reason))
	}
}

// waits has each pod ask for what the node does not have left. Nothing changes but a condition, which goes when the pod
// asks for what it has.
func waits(s *scene.Scene, names []string) {
	s.T.Helper()
	for _, name := range names {
		s.Resize(name, beyond(s.Record.View().Node().Status.Allocatable[corev1.ResourceCPU]))
	}
	for _, name := range names {
		s.Wait(scene.Patience, "a resize that waits", s.IsPending(name, corev1.PodReasonDeferred))
	}
	scene.Await(s.T, scene.Patience, "the resources to agree while resizes wait",
		func() error { return s.AgreeOnResources(names...) })
	for i, name := range names {
		s.Resize(name, kinds[i].resize(func() int64 { return least }))
	}
	s.Wait(scene.Patience, "the end of the resizes that waited", s.AreResized(names...))
	scene.Await(s.T, scene.Patience, "the resources to agree", func() error { return s.AgreeOnResources(names...) })
}

// createAll creates a number of pods of each kind, which are there as they should be when it returns. The kinds follow
// each other.
func createAll(s *scene.Scene, of int, size func() int64) (names []string) {
	s.T.Helper()
	var pods []*corev1.Pod
	var ready, unready []string
	for i := range of * len(kinds) {
		k := &kinds[i%len(kinds)]
		p := k.pod(s, fmt.Sprintf("%s-%d", k.name, i/len(kinds)), size())
		pods, names = append(pods, p), append(names, p.Name)
		if k.unready {
			unready = append(unready, p.Name)
		} else {
			ready = append(ready, p.Name)
		}
	}
	createPods(s, ready, unready, pods...)
	return names
}

// createPods creates pods, of which some get ready, and of which others have a container that runs.
func createPods(s *scene.Scene, ready, unready []string, pods ...*corev1.Pod) {
	s.T.Helper()
	s.CreatePods(pods...)
	s.WaitReady(scene.Patience, ready...)
	s.Wait(scene.Patience, "the first init containers", func(v record.View) error {
		for _, name := range unready {
			if p := v.Pod(s.Namespace, name); p == nil || len(resizing.Running(p)) == 0 { // not recorded yet
				return fmt.Errorf("no container of pod %s runs", name)
			}
		}
		return nil
	})
}

// keepsContainers judges from all that was seen of a pod that no container of it has started again that its policy does
// not say, and the others at most as often as their resources have changed. A container that was created and never ran,
// as podsync or the runtime leaves it that is killed before the start, does not count.
func keepsContainers(s *scene.Scene, k *kind, p *corev1.Pod, changes int) {
	s.T.Helper()
	ids := map[string][]string{}
	for _, was := range s.Record.History(p.UID) {
		for _, c := range slices.Concat(was.Status.InitContainerStatuses, was.Status.ContainerStatuses) {
			for _, id := range resizing.Started(&c) {
				if !slices.Contains(ids[c.Name], id) {
					ids[c.Name] = append(ids[c.Name], id)
				}
			}
		}
	}
	if len(ids) == 0 {
		s.T.Errorf("pod %s: no container was seen to run", p.Name)
	}
	for name, all := range ids {
		allowed := 1
		if k.restarts != "" && name == "main" {
			allowed += changes
		}
		if len(all) > allowed {
			s.T.Errorf("pod %s: %d containers %s ran, and %d may have run: %s", p.Name, len(all), name, allowed,
				strings.Join(all, ", "))
		}
	}
}
