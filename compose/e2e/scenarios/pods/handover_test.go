//go:build long

package pods

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/basic"
	"github.com/microlet/microlet/compose/e2e/internal/podgen"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestHandover gives the node from a kubelet to microlet and back, under pods of all kinds. No
// container notices, and all of the node's API works with what the kubelet left.
func TestHandover(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	// The kubelet keeps the folder of an agent before it; its own is for root alone.
	if err := errors.Join(os.Chown(scene.Shared.PodLogsDir(), 0, 0),
		os.Chmod(scene.Shared.PodLogsDir(), 0o750)); err != nil {
		t.Fatal(err)
	}
	s := scene.New(t)
	talks(s)
	// Pods with a gate of their own are never Ready.
	g := s.RandomPods(podgen.Options{
		Seed:    scene.Seed(t, uint64(time.Now().UnixNano())),
		Without: append(podgen.Ending(), "readiness gate"),
	})
	mixed := func(by string, count int) (names []string) {
		var pods []*corev1.Pod
		for i := range count {
			p, traits := g.Pod(fmt.Sprintf("%s-%d", by, i))
			t.Logf("%s: %s", p.Name, strings.Join(traits, ", "))
			pods, names = append(pods, p), append(names, p.Name)
		}
		s.CreatePods(pods...)
		s.WaitReady(scene.Patience, names...)
		return names
	}
	w := s.Witness(mixed("kubelet", scene.SteadyPods)...)
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	names := mixed("microlet", scene.SteadyPods/2)
	began := time.Now()
	askNodeAPI(s, t)
	made := s.Witness(names...)
	s.DeletePods(w.Pods[0].Name)
	s.Wait(scene.Patience, "the end of the kubelet's pod", s.AreGone(w.Pods[0].Name))
	w.Pods = w.Pods[1:]
	w.Untouched()
	made.Untouched()
	// A kubelet that starts takes containers with a startup probe as not started until it has run: these
	// pods are judged up to here.
	for _, x := range []*scene.Witness{w, made} {
		x.Pods = slices.DeleteFunc(x.Pods, hasStartupProbe)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !slices.ContainsFunc(made.Pods, func(p *corev1.Pod) bool { return p.Name == name })
	})
	scene.Await(t, scene.Patience, "microlet's containers to be old for a kubelet", func() error {
		if age := time.Since(began); age < kubeletStartGrace {
			return fmt.Errorf("they run for %s", age)
		}
		return nil
	})
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s.CreatePods(scene.PausePod("after"))
	s.WaitReady(scene.Patience, "after")
	w.Untouched()
	made.Untouched()
	s.DeletePods(names[0])
	s.Wait(scene.Patience, "the end of microlet's pod", s.AreGone(names[0]))
	made.Pods = made.Pods[1:]
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	w.Untouched()
	made.Untouched()
	s.KubectlComesToPrint("first\nsecond\n", "logs", "talk", "-c", "main")
	if age := w.LeaseAge(); age > 2*scene.MaxLeaseAge {
		t.Errorf("the Lease was %s old", age)
	}
}

// kubeletStartGrace is more than the 10 s before its own start within which a kubelet takes a container that has
// begun for its own, which is not Ready before it was probed.
const kubeletStartGrace = 12 * time.Second

func hasStartupProbe(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers),
		func(c corev1.Container) bool { return c.StartupProbe != nil })
}

// TestSingle runs with all services in one process what needs no separate ones.
func TestSingle(t *testing.T) {
	scene.Shared.UseMicrolet(t, scene.SinglePlacement)
	t.Run("basic", basic.Run)
	t.Run("failures", failures)
	t.Run("crowd", bigCrowd)
}
