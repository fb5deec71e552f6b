//go:build long

package devices

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestIdleResources: resources costs little beside one plugin and ten pods that have its devices, while nothing
// happens.
func TestIdleResources(t *testing.T) {
	const (
		pods      = 10
		rest      = 20 * time.Second // after the start of the last pod
		measured  = 2 * time.Minute
		mostCores = 0.001
		mostOwn   = 1 << 20 // of memory, beyond what a process of this program takes that has next to nothing to do
	)
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	var ids, names []string
	for i := range pods {
		ids, names = append(ids, fmt.Sprintf("device-%d", i)), append(names, fmt.Sprintf("pod-%d", i))
	}
	d := s.StartDevicePlugin("device", ids...)
	var all []*corev1.Pod
	for _, name := range names {
		all = append(all, scene.OnNode(d.Pod(name, 1), s.NodeName()))
	}
	s.CreatePods(all...)
	s.WaitReady(scene.Patience, names...)
	d.Agree(names...)
	time.Sleep(rest)
	pid := s.MustPID(t, role.Resources)
	before, err := machine.CPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(measured)
	after, err := machine.CPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	pss := pssOf(s, role.Resources)
	least := pssOf(s, role.Prober)
	cores := (after - before).Seconds() / measured.Seconds()
	t.Logf("resources takes %.4f cores and has %d KiB of PSS; prober, without a probe, has %d", cores, pss>>10, least>>10)
	if cores > mostCores || pss > least+mostOwn {
		t.Errorf("want at most %.4f cores, and %d KiB more than prober", mostCores, mostOwn>>10)
	}
}

func pssOf(s *scene.Scene, r role.Role) int64 {
	s.T.Helper()
	pss, err := machine.PSS(s.MustPID(s.T, r))
	if err != nil {
		s.T.Fatal(err)
	}
	return pss
}
