package pods

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/resizing"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// checkLimits judges that the kernel enforces the limits that the kind "limits" sets: 32 MiB, a tenth of a CPU.
func checkLimits(t *testing.T, s *scene.Scene, p *corev1.Pod) {
	t.Helper()
	if len(p.Status.ContainerStatuses) != 1 {
		t.Errorf("%s: %d container statuses", p.Name, len(p.Status.ContainerStatuses))
		return
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	got, _, at, err := s.Amounts(id)
	if err != nil {
		t.Errorf("%s: %v", p.Name, err)
		return
	}
	if problem := resizing.OfContainer(p, &p.Spec.Containers[0]).Problem(got); problem != "" {
		t.Errorf("%s: %s", p.Name, problem)
	}
	if got.Quota != 10_000 || got.Memory != 32<<20 {
		t.Errorf("%s: the limits are %s", p.Name, got)
	}
	for _, folder := range []string{at.CPU, at.Memory} {
		if !strings.Contains(folder, strings.TrimSuffix(s.CgroupRoot(), "/")+"/kubepods") {
			t.Errorf("%s: %s is not below the node's cgroup root %s", p.Name, folder, s.CgroupRoot())
		}
	}
}
