//go:build long

package resize

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/resizing"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestResizeOfTheKubelet holds what TestResize judges to a kubelet, which nothing disturbs.
func TestResizeOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	upAndDown(t, func(*scene.Scene) {})
}

// TestResizeBeforeTheStartOfTheKubelet shows a difference: the kubelet sets the cgroup of a pod whose init container
// runs when that container is resized, and not when another one is. The cgroup has the old amounts until then.
func TestResizeBeforeTheStartOfTheKubelet(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s, name := early(t)
	of := func() (has, want resizing.Amounts) {
		t.Helper()
		granted, err := s.ResizeState(resizing.AllocatedFile)
		if err != nil {
			t.Fatal(err)
		}
		p := s.Record.View().Pod(s.Namespace, name)
		_, id, _ := strings.Cut(p.Status.InitContainerStatuses[0].ContainerID, "://")
		_, has, _, err = s.Amounts(id)
		if err != nil {
			t.Fatal(err)
		}
		return has, resizing.OfPod(granted[p.UID].Of(p))
	}
	time.Sleep(5 * time.Second) // it may come late
	if has, want := of(); want.Problem(has) == "" {
		t.Errorf("the cgroup of the pod has %s, which was granted", has)
	}
	s.Resize(name, kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.unready })].resize(
		func() int64 { return least + 1 }))
	s.Wait(scene.Patience, "the resize of the init container", s.AreResized(name))
	scene.Await(t, scene.Patience, "the resources to agree", func() error { return s.AgreeOnResources(name) })
}
