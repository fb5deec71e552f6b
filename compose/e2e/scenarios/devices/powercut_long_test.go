//go:build long

package devices

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// pluginIsLate is how long after the agent the plugin starts.
const pluginIsLate = time.Minute

// TestDevicesAfterAPowerCut cuts the power of a node on which all devices are pods', and starts the plugin a minute
// after the agent. With microlet the pods wait for the plugin, and all run again with the devices that they had. What
// becomes of them with the kubelet is only shown.
func TestDevicesAfterAPowerCut(t *testing.T) {
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		t.Run(string(agent), func(t *testing.T) {
			scene.Shared.SwitchTo(t, agent)
			// The resource is new to the node: a kubelet that does not see yet that it has more of it now rejects pods.
			d := scene.New(t).StartDevicePlugin("late-"+string(agent), "a", "b", "c", "d", "e")
			survive(d, agent == rig.AgentMicrolet)
		})
	}
}

func survive(d *scene.DevicePlugin, all bool) {
	d.T.Helper()
	var names []string
	for i := range d.Plan.Devices {
		names = append(names, fmt.Sprintf("pod-%d", i))
		d.CreatePods(d.Pod(names[i], 1))
	}
	d.WaitReady(scene.Patience, names...)
	d.Agree(names...)
	owned := map[string][]string{}
	for _, name := range names {
		owned[name] = seen(d, name)
	}

	if err := d.LosePower(d.T.Context()); err != nil {
		d.T.Fatal(err)
	}
	if err := d.StartNode(d.T.Context()); err != nil {
		d.T.Fatal(err)
	}
	late := time.After(pluginIsLate)
	if err := d.WaitNodeReady(d.T.Context()); err != nil {
		d.T.Fatal(err)
	}
	// A pod without devices waits for no plugin.
	d.CreatePods(scene.ScriptPod("plain", scene.Forever))
	d.WaitReady(scene.Patience, "plain")
	<-late
	d.Start()

	failed := d.AfterRestart(2*scene.Patience, names...)
	if !all {
		return
	}
	if failed > 0 {
		d.T.Fatal("pods failed for a plugin that was late")
	}
	d.HasDevices(5, 5)
	d.Agree(names...)
	for _, name := range names {
		if now := seen(d, name); !slices.Equal(now, owned[name]) {
			d.T.Errorf("pod %s has the devices %q, and had %q", name, now, owned[name])
		}
	}
}
