//go:build long && !bench

package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/podgen"
	"github.com/microlet/microlet/compose/rig"
)

// TestHandover gives the node from a kubelet to microlet and back, under pods of all kinds. No
// container notices, and all of the node's API works with what the kubelet left.
func TestHandover(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	// The kubelet keeps the folder of an agent before it; its own is for root alone.
	if err := errors.Join(os.Chown(shared.PodLogsDir(), 0, 0), os.Chmod(shared.PodLogsDir(), 0o750)); err != nil {
		t.Fatal(err)
	}
	s := newScene(t)
	s.talks()
	// Pods with a gate of their own are never Ready.
	g := s.cast(podgen.Options{
		Seed:    seed(t, uint64(time.Now().UnixNano())),
		Without: append(podgen.Ending(), "readiness gate"),
	})
	mixed := func(by string, count int) (names []string) {
		var pods []*corev1.Pod
		for i := range count {
			p, traits := g.Pod(fmt.Sprintf("%s-%d", by, i))
			t.Logf("%s: %s", p.Name, strings.Join(traits, ", "))
			pods, names = append(pods, p), append(names, p.Name)
		}
		s.create(pods...)
		s.ready(patience, names...)
		return names
	}
	w := s.witness(mixed("kubelet", steadyPods)...)
	shared.switchTo(t, rig.AgentMicrolet)
	names := mixed("microlet", steadyPods/2)
	began := time.Now()
	s.edge(t)
	made := s.witness(names...)
	s.remove(w.pods[0].Name)
	s.wait(patience, "the end of the kubelet's pod", s.areGone(w.pods[0].Name))
	w.pods = w.pods[1:]
	w.untouched()
	made.untouched()
	// A kubelet that starts takes containers with a startup probe as not started until it has run: these
	// pods are judged up to here.
	for _, x := range []*witness{w, made} {
		x.pods = slices.DeleteFunc(x.pods, hasStartupProbe)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !slices.ContainsFunc(made.pods, func(p *corev1.Pod) bool { return p.Name == name })
	})
	await(t, patience, "microlet's containers to be old for a kubelet", func() error {
		if age := time.Since(began); age < kubeletStartGrace {
			return fmt.Errorf("they run for %s", age)
		}
		return nil
	})
	shared.switchTo(t, rig.AgentKubelet)
	s.create(plain("after"))
	s.ready(patience, "after")
	w.untouched()
	made.untouched()
	s.remove(names[0])
	s.wait(patience, "the end of microlet's pod", s.areGone(names[0]))
	made.pods = made.pods[1:]
	shared.switchTo(t, rig.AgentMicrolet)
	w.untouched()
	made.untouched()
	s.comesToSay("first\nsecond\n", "logs", "talk", "-c", "main")
	if age := w.leaseAge(); age > 2*maxLease {
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
	shared.use(t, single)
	t.Run("basic", basic)
	t.Run("failures", failures)
	t.Run("crowd", bigCrowd)
}
