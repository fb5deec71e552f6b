//go:build long && !bench

package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/compose/rig"
)

var update = flag.Bool("update", false, "write what the real kubelet shows into testdata instead of comparing with it")

// TestFailuresOfTheKubelet holds the recorded texts to a live kubelet.
func TestFailuresOfTheKubelet(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	got := symptoms(t)
	if *update {
		text, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(readGolden(t), got); diff != "" {
		t.Errorf("the kubelet shows other things than were recorded, run with -update (-recorded +kubelet):\n%s", diff)
	}
}

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
