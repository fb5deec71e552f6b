//go:build long

package twins

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// reservationFiles are the files of a cgroup that an agent writes, of cgroup v1.
var reservationFiles = []string{
	"cpu/cpu.shares", "cpu/cpu.cfs_quota_us", "memory/memory.limit_in_bytes", "pids/pids.max", "cpuset/cpuset.cpus",
}

// TestReservations starts the kubelet and microlet with the same reservations, each with new cgroups for them, and
// compares what the cgroups may have, what is allocatable, and the Events of the Node.
func TestReservations(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/cpu"); err != nil {
		t.Skip("this machine has cgroup v2, on which TestCgroupTwins compares")
	}
	s := scene.New(t)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	for _, test := range []struct {
		name, reserved, enforced string
		// from pods: thousandths of a CPU
		milliCPU int64
		// cpu.shares of the system's cgroup
		shares string
	}{
		{"all", "cpu=300m,memory=300Mi,pid=1000,ephemeral-storage=1Gi", "pods,system-reserved,kube-reserved", 450, "307"},
		{"compressible", "cpu=200m,memory=200Mi", "system-reserved-compressible,kube-reserved-compressible", 350, "204"},
		{"pods alone", "cpu=100m,memory=100Mi,pid=500", "pods", 250, "1024"},
	} {
		t.Run(test.name, func(t *testing.T) {
			system, kube := s.CgroupRoot()+"/system", s.CgroupRoot()+"/kube"
			args := []string{
				"--system-reserved=" + test.reserved, "--kube-reserved=cpu=150m,memory=64Mi,pid=100",
				"--enforce-node-allocatable=" + test.enforced,
				"--system-reserved-cgroup=" + system, "--kube-reserved-cgroup=" + kube,
			}
			theirs := reservation(s, t, rig.AgentKubelet, args, test.milliCPU, system, kube)
			ours := reservation(s, t, rig.AgentMicrolet, args, test.milliCPU, system, kube)
			t.Logf("under the kubelet:\n%s", strings.Join(theirs, "\n"))
			if d := cmp.Diff(theirs, ours); d != "" {
				t.Errorf("-kubelet +microlet\n%s", d)
			}
			// The positive control: the agents have written something.
			if want := "system cpu/cpu.shares=" + test.shares; !slices.Contains(theirs, want) {
				t.Errorf("under the kubelet there is no %s", want)
			}
		})
	}
}

// reservation starts the agent with new cgroups for reservations, and returns one fact per line.
func reservation(s *scene.Scene, t *testing.T, agent rig.Agent, args []string, milliCPU int64,
	cgroups ...string) []string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	makeCgroups(t, cgroups)
	events := s.API.CoreV1().Events(metav1.NamespaceDefault)
	if err := events.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	scene.Shared.SwitchTo(t, agent, args...)

	reserved := strings.Contains(strings.Join(args, " "), "reserved,") ||
		strings.Contains(strings.Join(args, " "), "compressible")
	want := map[bool]int{true: len(cgroups) + 1, false: 1}[reserved]
	var facts []string
	scene.Await(t, scene.Patience, "the events of enforcement", func() error {
		list, err := events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node"})
		if err != nil {
			return err
		}
		facts = facts[:0]
		for _, e := range list.Items {
			if strings.Contains(e.Reason, "NodeAllocatable") {
				facts = append(facts, fmt.Sprintf("event %s %s of %s %s: %s, from %s", e.Type, e.Reason,
					e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message, e.Source.Component))
			}
		}
		if len(facts) < want {
			return fmt.Errorf("%d of %d: %q", len(facts), want, facts)
		}
		return nil
	})
	node := withReservation(s, t, agent, milliCPU)
	for name, q := range node.Status.Capacity {
		a := node.Status.Allocatable[name]
		facts = append(facts, fmt.Sprintf("capacity %s %s, allocatable %s", name, q.String(), a.String()))
	}
	slices.Sort(facts)
	for _, path := range append([]string{s.CgroupRoot() + "/kubepods"}, cgroups...) {
		for _, file := range reservationFiles {
			controller, name := filepath.Split(file)
			text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, path, name))
			if err != nil {
				t.Fatal(err)
			}
			facts = append(facts, filepath.Base(path)+" "+file+"="+strings.TrimSpace(string(text)))
		}
	}
	return facts
}

// makeCgroups creates cgroups. The test removes them at its end.
func makeCgroups(t *testing.T, paths []string) {
	t.Helper()
	for _, path := range paths {
		for _, controller := range []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "systemd", "hugetlb"} {
			dir := filepath.Join("/sys/fs/cgroup", controller, path)
			if _, err := os.Stat("/sys/fs/cgroup/" + controller); err != nil {
				continue
			}
			if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove(dir) })
		}
	}
}

// withReservation waits until the agent has reported what pods may have without so much CPU.
func withReservation(s *scene.Scene, t *testing.T, agent rig.Agent, milliCPU int64) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	scene.Await(t, scene.Patience, "a status by "+string(agent), func() (err error) {
		node, err = s.API.CoreV1().Nodes().Get(context.WithoutCancel(t.Context()), s.NodeName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		version := node.Status.NodeInfo.KubeletVersion
		has, may := node.Status.Capacity.Cpu().MilliValue(), node.Status.Allocatable.Cpu().MilliValue()
		if strings.Contains(version, "microlet") != (agent == rig.AgentMicrolet) || may != has-milliCPU {
			return fmt.Errorf("%d of %d thousandths of a CPU for pods, says %s", may, has, version)
		}
		return nil
	})
	return node
}
