//go:build long && !bench

package e2e

import (
	"testing"

	"github.com/microlet/microlet/compose/rig"
)

// TestHandover gives the node from a kubelet to microlet and back. No container notices.
func TestHandover(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	s := newScene(t)
	s.create(scripted("several", forever))
	w := s.steady()
	shared.switchTo(t, rig.AgentMicrolet)
	s.create(scripted("made-by-microlet", forever))
	s.ready(patience, "made-by-microlet")
	made := s.witness("made-by-microlet", "several")
	s.remove("steady-0")
	s.wait(patience, "the end of the kubelet's pod", s.areGone("steady-0"))
	w.pods = w.pods[1:]
	w.untouched()
	shared.switchTo(t, rig.AgentKubelet)
	s.create(plain("after"))
	s.ready(patience, "after")
	w.untouched()
	made.untouched()
	s.remove("made-by-microlet")
	s.wait(patience, "the end of microlet's pod", s.areGone("made-by-microlet"))
	shared.switchTo(t, rig.AgentMicrolet)
	w.untouched()
	if age := w.leaseAge(); age > 2*maxLease {
		t.Errorf("the Lease was %s old", age)
	}
}

// TestSingle runs with all services in one process what needs no separate ones.
func TestSingle(t *testing.T) {
	shared.use(t, single)
	t.Run("basic", basic)
	t.Run("failures", failures)
	t.Run("crowd", bigCrowd)
}
