//go:build long && !bench

package e2e

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/compose/rig"
)

// TestAdmissionOfTheKubelet holds the recorded verdicts to a live kubelet.
func TestAdmissionOfTheKubelet(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	got := verdicts(t)
	if *update {
		text, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(goldenVerdicts, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(readVerdicts(t), got); diff != "" {
		t.Errorf("the kubelet shows other things than were recorded, run with -update (-recorded +kubelet):\n%s", diff)
	}
}
