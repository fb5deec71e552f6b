package capacity

import (
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/podsync/internal/cgroups"
)

// The kubelet limits all pods together to the node's number of processes, less what is reserved.
func TestPodsAreLimitedToTheNodesProcesses(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/proc/sys/kernel", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"pid_max": "4194304\n", "threads-max": "24142\n"} {
		if err := os.WriteFile(root+"/proc/sys/kernel/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	total := v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	limits, enforced, err := podLimits(nodeinfo.Source{Root: root}, total,
		nodeinfo.Reservation{Kube: map[string]string{"pid": "1000", "memory": "24Mi"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		list v1.ResourceList
		name v1.ResourceName
		want string
	}{
		{"limits", limits, cgroups.ResourcePIDs, "24142"}, {"limits", limits, v1.ResourceMemory, "1Gi"},
		{"enforced", enforced, cgroups.ResourcePIDs, "23142"}, {"enforced", enforced, v1.ResourceMemory, "1000Mi"},
	} {
		if got := c.list[c.name]; got.Cmp(resource.MustParse(c.want)) != 0 {
			t.Errorf("%s: %s is %s, want %s", c.what, c.name, got.String(), c.want)
		}
	}
	if _, reported := total[cgroups.ResourcePIDs]; reported {
		t.Error("the node's capacity in the API names a resource that it does not know")
	}
}

// The CPUs of reservedSystemCPUs are not allocatable, whatever the reservations say of CPU.
func TestReservedCPUs(t *testing.T) {
	k := &kubeletconfig.Config{Kubelet: kubeletconfig.Default()}
	k.Node.RootDir = t.TempDir()
	k.Kubelet.KubeReserved = map[string]string{"cpu": "100m"}
	k.Kubelet.ReservedSystemCPUs = "0"
	c, err := Read(k)
	if err != nil {
		t.Fatal(err)
	}
	for what, list := range map[string]v1.ResourceList{"allocatable": c.Allocatable, "enforced": c.Enforced} {
		if got := c.Total.Cpu().MilliValue() - list.Cpu().MilliValue(); got != 1000 {
			t.Errorf("%s lacks %dm CPU, want 1000m", what, got)
		}
	}
}
