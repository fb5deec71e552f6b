package devices

import (
	"testing"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestRegisteredDevices: the agent finds a plugin by its socket in the folder plugins_registry, and pods get its
// devices until the socket goes.
func TestRegisteredDevices(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	found(scene.New(t))
}

func found(s *scene.Scene) {
	s.T.Helper()
	d := s.NewDevicePlugin("found", "a", "b", "c").InRegistry()
	d.Start()
	d.HasDevices(3, 3)
	d.CreatePods(d.Pod("pod", 2))
	d.WaitReady(scene.Patience, "pod")
	d.Agree("pod")
	d.Stop()
	d.HasDevices(3, 0)
	d.Start()
	d.HasDevices(3, 3)
	d.Agree("pod")
}
