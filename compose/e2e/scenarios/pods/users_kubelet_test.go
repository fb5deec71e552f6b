//go:build long

package pods

import (
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestUserNamespacesOfTheKubelet holds the scenario to a live kubelet.
func TestUserNamespacesOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	userNamespaces(scene.New(t), func() {})
}

// TestUserNamespacesAreHandedOver: each of the two agents keeps the IDs that the other has given, and gives them to no
// other pod.
func TestUserNamespacesAreHandedOver(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s := scene.New(t)
	userNamespaces(s, func() {
		scene.Shared.SwitchTo(t, rig.AgentMicrolet)
		scene.Shared.SwitchTo(t, rig.AgentKubelet)
		scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	})
}
