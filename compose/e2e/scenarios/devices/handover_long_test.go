//go:build long

package devices

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestDevicesAreHandedOver gives the node from a kubelet to microlet and back, under pods of both that have devices. No
// container starts again, and each pod keeps its devices, of which none is given to another.
func TestDevicesAreHandedOver(t *testing.T) {
	agents := []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet, rig.AgentKubelet, rig.AgentMicrolet}
	scene.Shared.SwitchTo(t, agents[0])
	s := scene.New(t)
	d := s.StartDevicePlugin("device", "a", "b", "c", "d", "e", "f")
	var names []string
	owned := map[string][]string{}
	var w []*scene.Witness
	for i, agent := range agents {
		scene.Shared.SwitchTo(t, agent)
		d.HasDevices(6, 6)
		name := fmt.Sprintf("pod-%d", i)
		s.CreatePods(d.Pod(name, 1))
		s.WaitReady(scene.Patience, name)
		names = append(names, name)
		w = append(w, s.Witness(name))
		d.Agree(names...)
		owned[name] = seen(d, name)
		for _, name := range names {
			if now := seen(d, name); !slices.Equal(now, owned[name]) {
				t.Errorf("with %s pod %s has the devices %q, and had %q", agent, name, now, owned[name])
			}
		}
	}
	// A pod whose devices went over starts its container again with them.
	for i, agent := range []rig.Agent{rig.AgentMicrolet, rig.AgentKubelet} {
		scene.Shared.SwitchTo(t, agent)
		d.HasDevices(6, 6)
		for _, one := range w[:2] {
			one.Untouched()
			name := one.Pods[0].Name
			s.EndContainer(name)
			s.Wait(scene.Patience, "the container's next start", s.Restarted(name, int32(i+1)))
			d.Agree(names...)
			if now := seen(d, name); !slices.Equal(now, owned[name]) {
				t.Errorf("pod %s has the devices %q after a restart with %s, and had %q", name, now, agent, owned[name])
			}
		}
		w = []*scene.Witness{s.Witness(names[0]), s.Witness(names[1]), w[2], w[3]}
	}
	var gone []*corev1.Pod
	for _, one := range w {
		one.Untouched()
		gone = append(gone, one.Pods...)
	}
	s.DeletePods(names...)
	s.Wait(scene.Patience, "the pods' end", s.AreGone(names...))
	s.LeavesNothing(gone)
	d.Agree()
}
