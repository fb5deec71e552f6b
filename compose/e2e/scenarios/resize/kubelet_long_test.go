//go:build long

package resize

import (
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestResizeOfTheKubelet holds what TestResize judges to a kubelet, which nothing disturbs.
func TestResizeOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	upAndDown(t, func(*scene.Scene) {})
}
