package criconfig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/golden"
	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
	"github.com/microlet/microlet/services/podsync/internal/criconfig/internal/dns"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

var (
	_ DNS      = (*dns.Configurer)(nil)
	_ Objects  = (*objects.Store)(nil)
	_ Services = (*objects.Services)(nil)
)

// store is an Objects with what is in it.

// links is a Services that has one.

// builder makes configs as on a machine with cgroup v1, without swap limits.

// paths is a SubPaths that binds nothing.

// lockedPod asks for about everything that can be asked for.

// hostPod lives in the host's namespaces, with all privileges.

var drawn = regexp.MustCompile(`/containers/main/[0-9a-f]{8}"`)

func TestGolden(t *testing.T) {
	for name, p := range map[string]*v1.Pod{"plain": plainPod(), "locked": lockedPod(), "host": hostPod(),
		"users": usersPod()} {
		t.Run(name, func(t *testing.T) {
			b := builder(t)
			if name == "host" { // this one on a machine with cgroup v2 and swap
				b.Node.Unified, b.Node.SwapController, b.Node.SELinux = true, true, true
				b.Node.ThermalPaths = []string{"/sys/devices/system/cpu/cpu0/thermal_throttle"}
			}
			if err := b.Prepare(p); err != nil {
				t.Fatal(err)
			}
			sandbox, err := b.Sandbox(p, SandboxInput{Attempt: 1, CgroupParent: "/kubepods/pod", UserNamespace: users(p)})
			if err != nil {
				t.Fatal(err)
			}
			config, err := b.Container(t.Context(), p, &p.Spec.Containers[0], ContainerInput{
				RestartCount:  2,
				ImageRef:      "sha256:abc",
				ImageUID:      ptr.To[int64](0),
				PodIPs:        []string{"10.1.0.2", "fd00::2"},
				UserNamespace: users(p),
				Volumes: map[string]volumes.Mounted{
					"token": {HostPath: "/volumes/token", ReadOnly: true, SELinuxRelabel: true},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			hosts, err := os.ReadFile(filepath.Join(b.Node.PodDir(p.UID), "etc-hosts"))
			if err != nil {
				t.Fatal(err)
			}
			got := "sandbox " + text(t, sandbox) + "\ncontainer " + text(t, config) + "\nhosts\n" + string(hosts)
			got = strings.ReplaceAll(got, filepath.Dir(b.Node.RootDir), "/test")
			got = drawn.ReplaceAllString(got, `/containers/main/00000000"`)
			golden.Check(t, filepath.Join("testdata", name+".golden"), got)
		})
	}
}

// text writes a message with its keys in order; protojson varies its blanks on purpose.

func text(t *testing.T, m proto.Message) string {
	t.Helper()
	raw, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(raw, &plain); err != nil {
		t.Fatal(err)
	}
	out, err := json.MarshalIndent(plain, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestContainerHash holds the hash against the value that the kubelet's own tests have

// pinned since 1.31.

func TestContainerHash(t *testing.T) {
	c := &v1.Container{Name: "test_container", Image: "foo/image:v1", Args: []string{"/bin/sh", "-c", "echo abc"}}
	if got := ContainerHash(c); got != 0x8e45cbd0 {
		t.Errorf("hash = %#x, want 0x8e45cbd0", got)
	}
	c.Env = []v1.EnvVar{{Name: "A"}}
	if got := ContainerHash(c); got != 0x8e45cbd0 {
		t.Errorf("the hash changes with what cannot change while a container runs: %#x", got)
	}
	c.Image = "foo/image:v2"
	if got := ContainerHash(c); got == 0x8e45cbd0 {
		t.Error("another image, the same hash")
	}
}

// TestMountsOfPaths: what a subPath, a subPathExpr and recursiveReadOnly make of a mount.

func TestOOMScore(t *testing.T) {
	const capacity = 4_000_000_000
	pod := func(requests, limits v1.ResourceList) *v1.Pod {
		return &v1.Pod{
			Spec: v1.PodSpec{
				Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}},
			},
		}
	}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want int64
	}{
		"best effort": {pod(nil, nil), 1000},
		"guaranteed":  {pod(list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi")), -997},
		"half":        {pod(list("memory", "2000000000"), nil), 500},
		"nothing":     {pod(list("cpu", "5m"), nil), 999},
		"all":         {pod(list("memory", "4000000000"), nil), 3},
		"critical":    {hostPod(), -997},
	} {
		if got := oomScoreAdj(c.pod, &c.pod.Spec.Containers[0], capacity); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	// A sidecar is killed no sooner than those whom it serves.
	p := pod(list("memory", "2000000000"), nil)
	p.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}}
	if got := oomScoreAdj(p, &p.Spec.InitContainers[0], capacity); got != 500 {
		t.Errorf("sidecar: %d, want 500", got)
	}
	p = pod(list("memory", "1000000000"), nil)
	p.Spec.Resources = &v1.ResourceRequirements{Requests: list("memory", "3000000000")}
	if got := oomScoreAdj(p, &p.Spec.Containers[0], capacity); got != 250 {
		t.Errorf("request of the pod: %d, want 250", got)
	}
}

func TestUnifiedResources(t *testing.T) {
	n := builder(t).Node
	n.Unified, n.SwapController, n.SwapCapacity, n.SwapBehavior = true, true, 1<<30, LimitedSwap
	n.MemoryThrottlingFactor = ptr.To(0.9)
	p := plainPod()
	c := &p.Spec.Containers[0]
	c.Resources = v1.ResourceRequirements{Requests: list("memory", "1Gi"), Limits: list("memory", "2Gi")}
	want := map[string]string{
		"memory.oom.group": "1",
		"memory.min":       "0",
		"memory.low":       "0",
		"memory.high":      "2040107008",
		"memory.swap.max":  "134217728",
	}
	if diff := cmp.Diff(want, containerResources(p, c, &n).Unified); diff != "" {
		t.Error(diff)
	}
	n.MemoryReservation, n.SwapBehavior, n.SingleProcessOOMKill = true, NoSwap, ptr.To(true)
	want = map[string]string{"memory.low": "1073741824", "memory.high": "2040107008", "memory.swap.max": "0"}
	if diff := cmp.Diff(want, containerResources(p, c, &n).Unified); diff != "" {
		t.Error(diff)
	}
	n.MemoryQoS = false
	want = map[string]string{"memory.high": "max", "memory.swap.max": "0"}
	if diff := cmp.Diff(want, containerResources(p, c, &n).Unified); diff != "" {
		t.Error(diff)
	}
	n.Unified = false
	if r := containerResources(p, c, &n); r.Unified != nil || r.MemorySwapLimitInBytes != 2<<30 {
		t.Errorf("cgroup v1: %v", r)
	}
}

func TestHostname(t *testing.T) {
	p := plainPod()
	p.Name = strings.Repeat("a", 62) + ".b"
	if got, _, err := Hostname(p, "c"); err != nil || got != strings.Repeat("a", 62) {
		t.Errorf("%q, %v", got, err)
	}
	p.Spec.HostnameOverride, p.Spec.Subdomain = ptr.To("my.host"), "sub"
	if got, domain, err := Hostname(p, "c"); err != nil || got != "my.host" || domain != "" {
		t.Errorf("%q, %q, %v", got, domain, err)
	}
	p = plainPod()
	p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("s", 60), ptr.To(true)
	if _, err := kernelHostname(p, "cluster.local"); err == nil ||
		!strings.Contains(err.Error(), "is too long (64 characters is the max") {
		t.Errorf("err = %v", err)
	}
}

func TestPorts(t *testing.T) {
	p := plainPod()
	p.Spec.Containers[0].Ports = []v1.ContainerPort{
		{ContainerPort: 80, Protocol: "TCP"}, {ContainerPort: 80, Protocol: "TCP"}, {ContainerPort: 80, Protocol: "SCTP"},
		{ContainerPort: 80, Protocol: "TCP", HostIP: "fd00::1"}, {Name: "x", ContainerPort: 1}, {Name: "x", ContainerPort: 2},
	}
	if got := portMappings(p); len(got) != 4 || got[1].Protocol != runtimeapi.Protocol_SCTP {
		t.Errorf("%v", got)
	}
}

func TestDefaultNode(t *testing.T) {
	n, err := DefaultNode("/var/lib/kubelet")
	if err != nil {
		t.Fatal(err)
	}
	if n.MemoryCapacity <= 0 || n.PodLogsDir != "/var/log/pods" || !n.CPUCFSQuota || n.HostsFile != "/etc/hosts" {
		t.Errorf("%+v", n)
	}
}

// TestHostsFileThatAContainerMadeLarge: root in a container writes to the file that podsync compares.
