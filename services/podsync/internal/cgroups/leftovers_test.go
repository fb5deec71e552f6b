package cgroups

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestResizeBelowWhatIsLeft of containers that a killed runtime did not start: the quota of a pod shrinks below theirs,
// and not below that of a container that runs.
func TestResizeBelowWhatIsLeft(t *testing.T) {
	m := resizable(t)
	if m.unified {
		t.Skip("cgroup v2 accepts any quota")
	}
	sized := func(cpu string) *v1.Pod {
		return sizedPod(v1.ResourceRequirements{Requests: list("cpu", "100m"), Limits: list("cpu", cpu)})
	}
	parent, err := m.EnsurePod(sized("500m"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.RemovePod(context.Background(), "aaaa-1"); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(m.mounts["cpu"], parent)
	write := func(text string, path ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(append([]string{dir}, path...)...), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"left", "left/below", "runs"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("50000", "left", "cpu.cfs_quota_us")
	write("40000", "left", "below", "cpu.cfs_quota_us")
	write("30000", "runs", "cpu.cfs_quota_us")
	pid, _ := sleeping(t)
	write(strconv.Itoa(pid), "runs", "cgroup.procs")

	resize := func(cpu string) error {
		t.Helper()
		c, err := m.ReadPod(sized(cpu), nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.SetPod(sized(cpu), c.Has, c.Wants)
	}
	if err := resize("300m"); err != nil {
		t.Error(err)
	}
	if err := resize("200m"); err == nil {
		t.Error("the pod has a lower quota than a container that runs")
	}
	for path, want := range map[string]string{".": "30000", "left": "-1", "left/below": "-1", "runs": "30000"} {
		if got := read(t, filepath.Join(dir, path, "cpu.cfs_quota_us")); got != want {
			t.Errorf("the quota of %s is %s, want %s", path, got, want)
		}
	}
}
