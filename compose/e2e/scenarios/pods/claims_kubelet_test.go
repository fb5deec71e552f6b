//go:build long

package pods

import (
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestClaimsOfTheKubelet holds the scenario to a live kubelet.
func TestClaimsOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	claims(scene.New(t), func() {})
}

// TestClaimsAreHandedOver: each of the two agents goes on with what the other has mounted.
func TestClaimsAreHandedOver(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s := scene.New(t)
	claims(s, func() {
		scene.Shared.SwitchTo(t, rig.AgentMicrolet)
		scene.Shared.SwitchTo(t, rig.AgentKubelet)
		scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	})
}
