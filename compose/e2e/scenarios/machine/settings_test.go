//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
)

const (
	settingsDir = "/etc/kubernetes/settings.conf.d"
	settings    = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: /
systemCgroups: /rest
kubeletCgroups: /agent
featureGates: {QOSReserved: true}
memoryReservationPolicy: TieredReservation
memorySwap: {swapBehavior: LimitedSwap}
qosReserved: {memory: 50%}
`
	makeSwap = `test -e /swap || dd if=/dev/zero of=/swap bs=1M count=256 status=none
chmod 600 /swap
mkswap /swap > /dev/null
swapon /swap`
	// A process of the root cgroup, where systemd leaves none.
	startInRoot = `setsid sh -c 'echo 0 > /sys/fs/cgroup/cgroup.procs; exec sleep 100000' > /dev/null 2>&1 < /dev/null &
echo $!`
	undoSettings = `swapoff /swap
find /sys/fs/cgroup/agent -depth -type d -delete
until rmdir /sys/fs/cgroup/rest; do sleep 1; done`
)

// TestSettings has the settings of cgroup v2 that only a machine shows: what is in the root cgroup and the node agent
// are moved, containers have their share of the machine's swap, and what pods request is protected and reserved.
func TestSettings(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	run := func(script string) string {
		t.Helper()
		out, err := s.RunOnMachine(context.WithoutCancel(t.Context()), "sh", "-ec", script)
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		return strings.TrimSpace(out)
	}
	run(makeSwap)
	t.Cleanup(func() { run(undoSettings) })
	if err := s.WriteFile(settingsDir+"/10-settings.conf", []byte(settings)); err != nil {
		t.Fatal(err)
	}
	rooted := run(startInRoot)
	t.Cleanup(func() { run("kill " + rooted) })
	s.UseMicrolet(t, "--config-dir="+settingsDir)

	scene.Await(t, scene.Patience, "the process of the root cgroup is moved", func() error {
		return is(run("cat /proc/"+rooted+"/cgroup"), "0::/rest")
	})
	agent := run(`cat /proc/$(systemctl show -P MainPID microlet)/cgroup`)
	if !strings.HasPrefix(agent, "0::/agent") {
		t.Errorf("the node agent is in %s", agent)
	}
	first := run("cat /proc/1/cgroup")
	if first != "0::/init.scope" {
		t.Errorf("the first process is in %s", first)
	}
	checkMemory(s, run)
}

// checkMemory looks at the files of a container of each class.
func checkMemory(s *scene.Scene, run func(script string) string) {
	t := s.T
	t.Helper()
	with := func(name, request, limit string) *corev1.Pod {
		p := scene.ScriptPod(name, scene.Forever)
		r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
		if request != "" {
			r.Requests[corev1.ResourceMemory] = resource.MustParse(request)
			r.Limits[corev1.ResourceMemory] = resource.MustParse(limit)
		}
		if request != "" && request == limit {
			r.Limits[corev1.ResourceCPU] = resource.MustParse("100m")
		}
		p.Spec.Containers[0].Resources = r
		return p
	}
	s.CreatePods(with("guaranteed", "64Mi", "64Mi"), with("burstable", "32Mi", "96Mi"), with("besteffort", "", ""))
	s.WaitReady(scene.Patience, "guaranteed", "burstable", "besteffort")
	node, err := s.API.CoreV1().Nodes().Get(t.Context(), s.NodeName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	swap := node.Status.NodeInfo.Swap
	if swap == nil || swap.Capacity == nil || *swap.Capacity == 0 {
		t.Fatalf("the Node has no swap: %+v", node.Status.NodeInfo)
	}
	const request, page = 32 << 20, 4096
	share := int64(float64(request)/float64(node.Status.Capacity.Memory().Value())*float64(*swap.Capacity)) / page * page
	for pod, want := range map[string]string{ // memory.min, memory.low, memory.max, memory.swap.max
		"guaranteed": fmt.Sprint(64<<20, 0, 64<<20, 0),
		"burstable":  fmt.Sprint(0, 32<<20, 96<<20, share),
		"besteffort": "0 0 max 0",
	} {
		containers, err := s.Containers(pod)
		if err != nil || len(containers) != 1 {
			t.Fatalf("pod %s has %d containers, %v", pod, len(containers), err)
		}
		got := run(`cd $(find /sys/fs/cgroup -type d -name '*` + containers[0].GetId() + `*' | head -n 1)
			echo $(cat memory.min memory.low memory.max memory.swap.max)`)
		if err := is(got, want); err != nil {
			t.Errorf("container of pod %s: %v", pod, err)
		}
	}
	scene.Await(t, scene.Patience, "half of what pods request is reserved", func() error {
		limit := func(class string) int64 {
			n, err := strconv.ParseInt(run("cat "+class+"/memory.max"), 10, 64)
			if err != nil {
				return 0 // there is none yet
			}
			return n
		}
		const pods = "/sys/fs/cgroup/kubepods*"
		all, burstable, rest := limit(pods), limit(pods+"/*burstable*"), limit(pods+"/*besteffort*")
		return errors.Join(is(fmt.Sprint(all-burstable), fmt.Sprint(32<<20)),
			is(fmt.Sprint(burstable-rest), fmt.Sprint(16<<20)))
	})
}

func is(got, want string) error {
	if got != want {
		return fmt.Errorf("it is %q, want %q", got, want)
	}
	return nil
}
