//go:build long && !bench

package e2e

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/rig"
)

// TestVolumesHandover: each agent finds the volumes that the other has set up, keeps them as they are
// and up to date, gives them to a container that starts again, and removes them.
func TestVolumesHandover(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	s := newScene(t)
	s.secret("secret", "hidden")
	content := func(key string) { s.config("config", map[string]string{"key": key, "other": "bound"}) }
	content("first")
	made := func(name string) *corev1.Pod {
		p := volumesPod(filepath.Join(t.TempDir(), name))
		p.Name = name
		s.create(p)
		s.ready(patience, name)
		p = s.record.View().Pod(s.ns, name)
		s.sees(p, 0, patience, "==end")
		return p
	}
	before := made("volumes")
	w := s.witness("volumes")
	shared.switchTo(t, rig.AgentMicrolet)
	ours := made("by-microlet")
	w.untouched()
	s.changes(ours, "now: second", func() { content("second") })
	s.sees(before, 0, shown, "now: second")
	s.endContainer("volumes")
	s.wait(patience, "the start of the kubelet's container by microlet", s.restarted("volumes", 1))
	s.sees(before, 1, patience, "kept: one two bound: bound")
	s.remove("volumes")
	s.wait(patience, "the end of the kubelet's pod", s.areGone("volumes"))
	s.leavesNothing([]*corev1.Pod{before})
	w = s.witness("by-microlet")
	shared.switchTo(t, rig.AgentKubelet)
	w.untouched()
	content("third")
	s.sees(ours, 0, patience, "now: third")
	s.endContainer("by-microlet")
	s.wait(patience, "the start of microlet's container by the kubelet", s.restarted("by-microlet", 1))
	s.sees(ours, 1, patience, "kept: one two bound: bound")
	s.remove("by-microlet")
	s.wait(patience, "the end of microlet's pod", s.areGone("by-microlet"))
	s.leavesNothing([]*corev1.Pod{ours})
	shared.switchTo(t, rig.AgentMicrolet)
}
