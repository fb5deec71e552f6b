//go:build long

package devices

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/deviceplugin"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// victim is what is killed, and is back when kill returns or soon after.
type victim struct {
	name string
	kill func(*scene.DevicePlugin)
}

func service(r role.Role) victim {
	return victim{string(r), func(d *scene.DevicePlugin) {
		d.T.Helper()
		// It may have been killed just before.
		scene.Await(d.T, scene.Patience, string(r)+" to run", func() error {
			pid := d.PID(r)
			if pid == 0 {
				return errors.New("it does not")
			}
			return d.SignalPIDs(syscall.SIGKILL, pid)
		})
	}}
}

var victims = []victim{
	service(role.Resources), service(role.Podsync), service(role.Bus),
	{"plugin", func(d *scene.DevicePlugin) { d.Kill(); d.Start() }},
	{"plugin, with another socket", func(d *scene.DevicePlugin) {
		d.Kill()
		d.StartAt(fmt.Sprintf("other-%d.sock", len(d.Calls())))
	}},
	{"runtime", func(d *scene.DevicePlugin) { d.KillRuntime(0) }},
}

// TestDeviceKillsAtCalls kills each victim at each call of a plugin for a pod: before the plugin does its work, and
// when only its answer lacks. In the end the pod runs, and each device has one owner.
func TestDeviceKillsAtCalls(t *testing.T) {
	k := newKilling(t, "a", "b", "c") // the agent asks for a preference only where it has a choice
	for _, method := range []string{deviceplugin.Preferred, deviceplugin.Allocate, deviceplugin.PreStart} {
		for _, after := range []bool{false, true} {
			for _, v := range victims {
				t.Run(fmt.Sprintf("%s/%s/after=%t", method, v.name, after), func(t *testing.T) {
					k.in(t).at(method, after, v)
				})
			}
		}
	}
	k.T = t
	k.Agree("keeps")
}

// TestDeviceKills kills random victims at random moments while pods with devices start, and while they end.
func TestDeviceKills(t *testing.T) {
	k := newKilling(t, "a", "b", "c", "d", "e")
	random := rand.New(rand.NewPCG(scene.Seed(t, uint64(time.Now().UnixNano())), 0))
	const rounds = 30
	for round := range rounds {
		k.round(random, round)
	}
	for _, name := range k.killed {
		k.counts[name]++
	}
	t.Logf("killed: %v", k.counts)
	k.Agree("keeps")
}

// killing kills while pods with devices start and end. One pod has a device all the time.
type killing struct {
	*scene.DevicePlugin
	pods   int
	killed []string
	counts map[string]int
	keeps  *scene.Witness
}

func newKilling(t *testing.T, devices ...string) *killing {
	t.Helper()
	scene.Shared.UseMicrolet(t)
	d := scene.New(t).NewDevicePlugin("device", devices...)
	d.Plan.PreStart, d.Plan.Preferred = true, true
	d.Follow()
	d.Start()
	d.HasDevices(len(devices), len(devices))
	d.CreatePods(d.Pod("keeps", 1))
	d.WaitReady(scene.Patience, "keeps")
	return &killing{DevicePlugin: d, counts: map[string]int{}, keeps: d.Witness("keeps")}
}

// in has a subtest be the one that fails.
func (k *killing) in(t *testing.T) *killing {
	plugin, s := *k.DevicePlugin, *k.Scene
	s.T, plugin.Scene = t, &s
	k.DevicePlugin = &plugin
	return k
}

// at kills a victim while a call for the start of a pod is held.
func (k *killing) at(method string, after bool, v victim) {
	k.T.Helper()
	k.pods++
	name, behind := fmt.Sprintf("pod-%d", k.pods), len(k.Calls())
	k.Follow(deviceplugin.Rule{Method: method, After: after, Hold: true})
	k.CreatePods(scene.OnNode(k.Pod(name, 1), k.NodeName()))
	k.Called(behind, method, scene.BeginsCall)
	v.kill(k.DevicePlugin)
	k.Follow()
	k.ends(name)
}

// ends waits until pods run, judges who has which device, and deletes the pods.
func (k *killing) ends(names ...string) {
	k.T.Helper()
	k.WaitReady(2*scene.Patience, names...)
	k.Agree(append(slices.Clone(names), "keeps")...)
	k.gone(names, func() {})
	k.keeps.Untouched()
}

// gone deletes pods and has something happen meanwhile. Nothing is left of them.
func (k *killing) gone(names []string, happen func()) {
	k.T.Helper()
	var pods []*corev1.Pod
	for _, name := range names {
		pods = append(pods, k.Record.View().Pod(k.Namespace, name))
	}
	k.DeletePods(names...)
	happen()
	k.Wait(2*scene.Patience, "the pods' end", k.AreGone(names...))
	k.LeavesNothing(pods)
	k.Agree("keeps")
}

// round starts pods that together have all devices that are left, and ends them. Something is killed in both.
func (k *killing) round(random *rand.Rand, round int) {
	k.T.Helper()
	var names []string
	var pods []*corev1.Pod
	for free := len(k.Plan.Devices) - 1; free > 0; {
		count := 1 + random.IntN(min(2, free))
		free -= count
		name := fmt.Sprintf("round-%d-%d", round, len(names))
		names, pods = append(names, name), append(pods, scene.OnNode(k.Pod(name, count), k.NodeName()))
	}
	kill := func() {
		for range 1 + random.IntN(2) {
			time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
			v := victims[random.IntN(len(victims))]
			k.killed = append(k.killed, v.name)
			v.kill(k.DevicePlugin)
		}
	}
	k.CreatePods(pods...)
	kill()
	k.WaitReady(2*scene.Patience, names...)
	k.Agree(append(slices.Clone(names), "keeps")...)
	k.gone(names, kill)
	k.keeps.Untouched()
	// The plugin and the Node are as they were before the next round.
	k.HasDevices(len(k.Plan.Devices), len(k.Plan.Devices))
	k.WaitHealthy(k.T, scene.Patience)
}
