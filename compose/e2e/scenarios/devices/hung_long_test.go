//go:build long

package devices

import (
	"fmt"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/deviceplugin"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// others is how many pods live beside one whose devices hang.
const others = 30

// TestHungPlugin: a plugin that never answers delays the pod that asks for its devices, and no other.
func TestHungPlugin(t *testing.T) {
	for _, method := range []string{deviceplugin.Allocate, deviceplugin.PreStart} {
		t.Run(method, func(t *testing.T) {
			d := newHanging(t)
			d.hangs(method, func() {
				d.Follow(deviceplugin.Rule{Method: method, Hold: true})
			}, func() { d.Follow() })
		})
	}
	t.Run("stopped", func(t *testing.T) {
		d := newHanging(t)
		d.hangs("a stopped plugin", func() { d.SignalPlugin(syscall.SIGSTOP) }, func() { d.SignalPlugin(syscall.SIGCONT) })
	})
}

// TestHungResources: resources does not answer. Pods that ask for no device do not notice.
func TestHungResources(t *testing.T) {
	d := newHanging(t)
	d.replaced = true
	var release func()
	d.hangs("resources", func() { release = d.HoldStopped(role.Resources) }, func() { release() })
}

// hanging is a plugin beside which other pods are measured.
type hanging struct {
	*scene.DevicePlugin
	// replaced: the supervisor replaces what hangs. The next process may answer before it is stopped too.
	replaced bool
}

func newHanging(t *testing.T) *hanging {
	t.Helper()
	scene.Shared.UseMicrolet(t)
	d := scene.New(t).NewDevicePlugin("device", "a", "b")
	d.Plan.PreStart = true // an agent asks for a plugin's options once
	d.Follow()
	d.Start()
	d.HasDevices(2, 2)
	return &hanging{DevicePlugin: d}
}

// hangs measures other pods without what hangs and beside it, in turn. The pod that asks for a device runs when it goes
// on; meanwhile the pod that has one runs on.
func (h *hanging) hangs(what string, begin, end func()) {
	h.T.Helper()
	h.CreatePods(h.Pod("has", 1))
	h.WaitReady(scene.Patience, "has")
	w := h.Witness("has")
	h.Sample(crowd(h.Scene, "first"), func() {}) // what is slow only once is not measured
	var without, beside []scene.Sample
	for i := range scene.Samples {
		without = append(without, h.Sample(crowd(h.Scene, "without"), func() {}))
		begin()
		name := fmt.Sprintf("hung-%d", i)
		h.CreatePods(scene.OnNode(h.Pod(name, 1), h.NodeName()))
		beside = append(beside, h.Sample(crowd(h.Scene, "beside"), func() {}))
		p := h.Record.View().Pod(h.Namespace, name)
		if p.Status.Phase == corev1.PodRunning && !h.replaced {
			h.T.Errorf("the pod is %s although %s hangs", scene.Describe(p), what)
		}
		end()
		h.HasDevices(2, 2)
		// The node may have rejected it: a plugin that does not answer in time has failed.
		if p.Status.Phase == corev1.PodPending {
			h.WaitReady(2*scene.Patience, name)
			h.Agree("has", name)
		}
		h.DeletePods(name)
		h.Wait(scene.Patience, "the pod's end", h.AreGone(name))
	}
	h.LogSamples(fmt.Sprintf("%d pods beside a hung %s", others, what), without, beside)
	w.Untouched()
	w.NodeReady()
	h.Agree("has")
}

// crowd is of pods that ask for no device.
func crowd(s *scene.Scene, name string) (pods []*corev1.Pod) {
	for i := range others {
		pods = append(pods, scene.OnNode(scene.PausePod(fmt.Sprintf("%s-%d", name, i)), s.NodeName()))
	}
	return pods
}
