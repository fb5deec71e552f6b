package pods

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

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
	pid, err := s.ContainerPID(id)
	if err != nil {
		t.Errorf("%s: %v", p.Name, err)
		return
	}
	text, err := s.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Errorf("%s: %v", p.Name, err)
		return
	}
	paths := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(string(text))) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for controller := range strings.SplitSeq(fields[1], ",") {
			paths[controller] = fields[2]
		}
	}
	want := map[string]string{
		filepath.Join("/sys/fs/cgroup", paths[""], "memory.max"): "33554432",
		filepath.Join("/sys/fs/cgroup", paths[""], "cpu.max"):    "10000 100000",
	}
	if _, unified := s.ReadFile("/sys/fs/cgroup/cgroup.controllers"); unified != nil {
		want = map[string]string{
			filepath.Join("/sys/fs/cgroup/memory", paths["memory"], "memory.limit_in_bytes"): "33554432",
			filepath.Join("/sys/fs/cgroup/cpu", paths["cpu"], "cpu.cfs_quota_us"):            "10000",
		}
	}
	for file, value := range want {
		got, err := s.ReadFile(file)
		if err != nil || strings.TrimSpace(string(got)) != value {
			t.Errorf("%s: %s is %q, want %q: %v", p.Name, file, strings.TrimSpace(string(got)), value, err)
		}
		if !strings.Contains(file, strings.TrimSuffix(s.CgroupRoot(), "/")+"/kubepods") {
			t.Errorf("%s: %s is not below the node's cgroup root %s", p.Name, file, s.CgroupRoot())
		}
	}
}
