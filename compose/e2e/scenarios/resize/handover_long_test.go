//go:build long

package resize

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/resizing"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// fills takes 40 MiB of memory until it is asked to stop.
const fills = "dd if=/dev/zero of=/dev/shm/block bs=1M count=40 2>/dev/null; " + scene.Forever

// TestResizesAreHandedOver gives the node from a kubelet to microlet and back, with pods of which one was resized, the
// resize of one cannot be carried out because it uses more memory, and that of one waits for room. Nothing starts
// again, and nothing is granted that was not.
func TestResizesAreHandedOver(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s := scene.New(t)
	all := s.Record.View().Node().Status.Allocatable[corev1.ResourceCPU]
	pods := map[string]*corev1.Pod{}
	for name, script := range map[string]string{"resized": scene.Forever, "hampered": fills, "waits": scene.Forever} {
		p := scene.OnNode(scene.ScriptPod(name, script), s.NodeName())
		setLimits(&p.Spec.Containers[0], most)
		pods[name] = p
	}
	s.CreatePods(pods["resized"], pods["hampered"], pods["waits"])
	names := []string{"resized", "hampered", "waits"}
	s.WaitReady(scene.Patience, names...)
	scene.Await(t, scene.Patience, "the memory to be taken", func() error { return takes(s, "hampered", 40<<20) })

	s.Resize("resized", to(least))
	// Of its memory alone: CPU of the same resize is given by microlet meanwhile, and not by a kubelet.
	s.Resize("hampered", func(spec *corev1.PodSpec) {
		cpu := spec.Containers[0].Resources.DeepCopy()
		setLimits(&spec.Containers[0], least)
		to := &spec.Containers[0].Resources
		to.Requests[corev1.ResourceCPU], to.Limits[corev1.ResourceCPU] = *cpu.Requests.Cpu(), *cpu.Limits.Cpu()
	})
	s.Resize("waits", beyond(all))
	settled := func(v record.View) error {
		return errors.Join(s.AreResized("resized")(v), isHampered(v.Pod(s.Namespace, "hampered")),
			s.IsPending("waits", corev1.PodReasonDeferred)(v))
	}
	s.Wait(scene.Patience, "the states to hand over", settled)
	w := s.Witness(names...)
	before := inForce(s, names...)
	for _, agent := range []rig.Agent{rig.AgentMicrolet, rig.AgentKubelet, rig.AgentMicrolet} {
		scene.Shared.SwitchTo(t, agent)
		s.CreatePods(scene.OnNode(scene.PausePod("with-"+string(agent)), s.NodeName()))
		s.WaitReady(scene.Patience, "with-"+string(agent))
		s.DeletePods("with-" + string(agent))
		s.Wait(scene.Patience, "the end of a pod", s.AreGone("with-"+string(agent)))
		s.Wait(scene.Patience, fmt.Sprintf("the states with %s", agent), settled)
		if now := inForce(s, names...); !maps.Equal(now, before) {
			t.Errorf("with %s the resources are %v, and were %v", agent, now, before)
		}
	}
	// Each goes on from where it was.
	for _, agent := range []rig.Agent{rig.AgentMicrolet, rig.AgentKubelet} {
		scene.Shared.SwitchTo(t, agent)
		for _, size := range []int64{most, most - 1} {
			for _, name := range names {
				s.Resize(name, to(size))
			}
			s.Wait(scene.Patience, fmt.Sprintf("resizes to %d with %s", size, agent), s.AreResized(names...))
			scene.Await(t, scene.Patience, "the resources to agree", func() error { return s.AgreeOnResources(names...) })
		}
	}
	w.Untouched()
}

// takes returns nil when a pod takes that much memory, by its cgroup.
func takes(s *scene.Scene, name string, want int64) error {
	pod := s.Record.View().Pod(s.Namespace, name)
	_, id, _ := strings.Cut(scene.ContainerID(pod), "://")
	at, err := s.CgroupFolders(id)
	if err != nil {
		return err
	}
	file := "memory.usage_in_bytes"
	if at.Unified {
		file = "memory.current"
	}
	text, err := s.ReadFile(filepath.Join(at.Memory, file))
	if err != nil {
		return err
	}
	got, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err == nil && got < want {
		err = fmt.Errorf("it takes %d bytes", got)
	}
	return err
}

// isHampered returns nil when a resize is granted and cannot be carried out.
func isHampered(p *corev1.Pod) error {
	c := resizing.Condition(p, corev1.PodResizeInProgress)
	if c == nil || c.Reason != corev1.PodReasonError {
		return fmt.Errorf("pod %s has the condition PodResizeInProgress %+v, want the reason %s", p.Name, c,
			corev1.PodReasonError)
	}
	return nil
}

// inForce is what is granted to pods, by the agent's file, and enforced, by name.
func inForce(s *scene.Scene, names ...string) map[string]string {
	s.T.Helper()
	granted, err := s.ResizeState(resizing.AllocatedFile)
	if err != nil {
		s.T.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range names {
		p := s.Record.View().Pod(s.Namespace, name)
		_, id, _ := strings.Cut(scene.ContainerID(p), "://")
		own, pod, _, err := s.Amounts(id)
		if err != nil {
			s.T.Fatal(err)
		}
		main := granted[p.UID].ContainerResources["main"]
		all[name] = fmt.Sprintf("%s is granted; the container has %s, and the pod %s", resizing.Text(&main), own, pod)
	}
	return all
}
