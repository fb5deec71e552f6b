//go:build long

package devices

import (
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestDevicesOfTheKubelet holds the scenario to a live kubelet.
func TestDevicesOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	lifecycle(scene.New(t).StartDevicePlugin("device", "a", "b"))
}

// TestRegisteredDevicesOfTheKubelet does so with a plugin that the kubelet finds.
func TestRegisteredDevicesOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	found(scene.New(t))
}
