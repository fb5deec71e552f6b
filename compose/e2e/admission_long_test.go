//go:build long && !bench

package e2e

import (
	"testing"

	"github.com/microlet/microlet/compose/rig"
)

// TestAdmissionOfTheKubelet holds the recorded verdicts to a live kubelet.
func TestAdmissionOfTheKubelet(t *testing.T) {
	shared.switchTo(t, rig.AgentKubelet)
	compareOrRecord(t, goldenVerdicts, verdicts(t, unlessUpdated[map[string]verdict](t, goldenVerdicts)))
}
