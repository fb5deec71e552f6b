//go:build long

package pods

import (
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestAdmissionOfTheKubelet holds the recorded rejections to a live kubelet.
func TestAdmissionOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	compareOrRecord(t, goldenRejections, rejections(t, unlessUpdated[map[string]rejection](t, goldenRejections)))
}
