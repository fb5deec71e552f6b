//go:build long && !bench

package e2e

import (
	"testing"

	"github.com/microlet/microlet/compose/rig"
)

// TestAdmissionOfTheKubelet holds the recorded rejections to a live kubelet.
func TestAdmissionOfTheKubelet(t *testing.T) {
	Shared.SwitchTo(t, rig.AgentKubelet)
	compareOrRecord(t, goldenRejections, rejections(t, unlessUpdated[map[string]rejection](t, goldenRejections)))
}
