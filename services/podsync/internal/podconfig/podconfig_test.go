package podconfig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/testing/golden"
	"github.com/microlet/microlet/services/podsync/internal/network"
	"github.com/microlet/microlet/services/podsync/internal/objects"
	"github.com/microlet/microlet/services/podsync/internal/volume"
)

var (
	_ DNS      = (*network.Configurer)(nil)
	_ Objects  = (*objects.Store)(nil)
	_ Services = (*objects.Services)(nil)
)

// store is an Objects with what is in it.
type store struct {
	secrets    map[string]map[string][]byte
	configMaps map[string]map[string]string
}

func (s *store) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	data, ok := s.secrets[namespace+"/"+name]
	if !ok {
		return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
	}
	return &v1.Secret{Data: data}, nil
}

func (s *store) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	data, ok := s.configMaps[namespace+"/"+name]
	if !ok {
		return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
	}
	return &v1.ConfigMap{Data: data}, nil
}

// links is a Services that has one.
type links struct{ synced bool }

func (l *links) Synced() bool { return l.synced }

func (l *links) Env(_ string, all bool) (map[string]string, error) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
	if all {
		env["DB_SERVICE_HOST"] = "10.96.0.2"
	}
	return env, nil
}

// builder makes configs as on a machine with cgroup v1, without swap limits.
func builder(t *testing.T) *Builder {
	t.Helper()
	dir := t.TempDir()
	hosts := filepath.Join(dir, "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1\tnode\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Builder{
		Node: Node{
			RootDir:          filepath.Join(dir, "kubelet"),
			PodLogsDir:       filepath.Join(dir, "pods"),
			ContainerLogsDir: filepath.Join(dir, "containers"),
			HostsFile:        hosts,
			ClusterDomain:    "cluster.local",
			CPUCFSQuota:      true,
			MemoryQoS:        true,
			MemoryCapacity:   8 << 30,
			HugePageSizes:    []string{"1GB", "2MB"},
			HostIPs:          func() []string { return []string{"10.0.0.1"} },
			Allocatable:      func() v1.ResourceList { return list("cpu", "4", "memory", "8Gi") },
		},
		DNS: network.New(network.Options{ClusterDomain: "cluster.local"}),
		Objects: &store{
			secrets:    map[string]map[string][]byte{"ns/s": {"password": []byte("secret")}},
			configMaps: map[string]map[string]string{"ns/c": {"b": "2", "a": "1"}},
		},
		Services: &links{synced: true},
		SubPaths: paths{},
	}
}

// paths is a SubPaths that binds nothing.
type paths struct{}

func (paths) SubPath(_ context.Context, s volume.SubPath) (string, error) {
	if err := volume.CheckSubPath(s.Path); err != nil {
		return "", err
	}
	return fmt.Sprintf("/bound/%s/%s/%s/%d%s/%s", s.Pod.UID, s.Volume, s.Container, s.Index, s.Root, s.Path), nil
}

func list(pairs ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func plainPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "web",
			Namespace: "ns",
			UID:       "0b5c-1",
			Labels:    map[string]string{"app": "web"},
			Annotations: map[string]string{
				"kubernetes.io/config.source": "api",
				"kubernetes.io/config.seen":   "2026-01-02T03:04:05Z",
			},
		},
		Spec: v1.PodSpec{
			DNSPolicy:                     v1.DNSDefault,
			EnableServiceLinks:            ptr.To(true),
			TerminationGracePeriodSeconds: ptr.To[int64](30),
			SecurityContext:               &v1.PodSecurityContext{},
			ServiceAccountName:            "default",
			NodeName:                      "node",
			Containers: []v1.Container{{
				Name: "main", Image: "registry.example/web:1", TerminationMessagePath: "/dev/termination-log",
				TerminationMessagePolicy: v1.TerminationMessageReadFile, ImagePullPolicy: v1.PullIfNotPresent,
				VolumeMounts: []v1.VolumeMount{{
					Name:      "token",
					MountPath: "/var/run/secrets/kubernetes.io/serviceaccount",
					ReadOnly:  true,
				}},
			}},
		},
	}
}

// lockedPod asks for about everything that can be asked for.
func lockedPod() *v1.Pod {
	p := plainPod()
	p.Annotations = map[string]string{"example.com/a": "1"}
	p.DeletionGracePeriodSeconds = ptr.To[int64](5)
	p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "w", "sub", ptr.To(true)
	p.Spec.ShareProcessNamespace = ptr.To(true)
	p.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}}
	p.Spec.DNSPolicy = v1.DNSNone
	p.Spec.DNSConfig = &v1.PodDNSConfig{
		Nameservers: []string{"9.9.9.9"},
		Searches:    []string{"example.com"},
		Options:     []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}},
	}
	p.Spec.Overhead = list("cpu", "100m", "memory", "16Mi")
	p.Spec.SecurityContext = &v1.PodSecurityContext{
		RunAsUser:                ptr.To[int64](1000),
		RunAsGroup:               ptr.To[int64](2000),
		RunAsNonRoot:             ptr.To(true),
		FSGroup:                  ptr.To[int64](3000),
		SupplementalGroups:       []int64{4000, 4001},
		SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict),
		SELinuxOptions:           &v1.SELinuxOptions{Level: "s0:c1,c2"},
		Sysctls:                  []v1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "0 1"}},
		SeccompProfile:           &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
		AppArmorProfile:          &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined},
	}
	c := &p.Spec.Containers[0]
	c.Command, c.Args, c.WorkingDir = []string{"/bin/sh", "-c"}, []string{"echo $(GREETING) $$(X) $(NOT)"}, "/work"
	c.Stdin, c.StdinOnce, c.TTY = true, true, true
	c.Ports = []v1.ContainerPort{{Name: "http", ContainerPort: 80, Protocol: v1.ProtocolTCP},
		{ContainerPort: 53, HostPort: 5353, HostIP: "10.0.0.1", Protocol: v1.ProtocolUDP}}
	c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"stop"}}}}
	c.Resources = v1.ResourceRequirements{
		Requests: list("cpu", "250m", "memory", "64Mi"),
		Limits:   list("cpu", "500m", "memory", "128Mi", "hugepages-2Mi", "4Mi"),
	}
	c.SecurityContext = &v1.SecurityContext{
		Capabilities:             &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}},
		RunAsUser:                ptr.To[int64](1001),
		ReadOnlyRootFilesystem:   ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false),
		SeccompProfile: &v1.SeccompProfile{
			Type:             v1.SeccompProfileTypeLocalhost,
			LocalhostProfile: ptr.To("p/a.json"),
		},
		AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: ptr.To("k8s-x")},
	}
	c.EnvFrom = []v1.EnvFromSource{
		{Prefix: "C_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}}},
		{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Optional: ptr.To(true)}},
	}
	c.Env = []v1.EnvVar{
		{Name: "WHO", Value: "you"}, {Name: "GREETING", Value: "hello $(WHO) at $(KUBERNETES_SERVICE_HOST), $(LATER)"}, {Name: "LATER", Value: "x"}, {Name: "C_a", Value: "over"},
		{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.podIP"}}},
		{Name: "CPUS", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
		{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Key: "password"}}},
		{Name: "SKIPPED", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "c"}, Key: "none", Optional: ptr.To(true)}}},
		{Name: "EMPTY"},
	}
	return p
}

// hostPod lives in the host's namespaces, with all privileges.
func hostPod() *v1.Pod {
	p := plainPod()
	p.Spec.HostNetwork, p.Spec.HostPID, p.Spec.HostIPC, p.Spec.HostUsers = true, true, true, ptr.To(true)
	p.Spec.EnableServiceLinks = ptr.To(false)
	p.Spec.PriorityClassName, p.Spec.Priority = "system-node-critical", ptr.To[int32](2000001000)
	p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{
		Privileged: ptr.To(true),
		ProcMount:  ptr.To(v1.UnmaskedProcMount),
	}
	return p
}

var drawn = regexp.MustCompile(`/containers/main/[0-9a-f]{8}"`)

func TestGolden(t *testing.T) {
	for name, p := range map[string]*v1.Pod{"plain": plainPod(), "locked": lockedPod(), "host": hostPod()} {
		t.Run(name, func(t *testing.T) {
			b := builder(t)
			if name == "host" { // this one on a machine with cgroup v2 and swap
				b.Node.Unified, b.Node.SwapController, b.Node.SELinux = true, true, true
				b.Node.ThermalPaths = []string{"/sys/devices/system/cpu/cpu0/thermal_throttle"}
			}
			if err := b.Prepare(p); err != nil {
				t.Fatal(err)
			}
			sandbox, err := b.Sandbox(p, 1, "/kubepods/pod")
			if err != nil {
				t.Fatal(err)
			}
			config, err := b.Container(t.Context(), p, &p.Spec.Containers[0], ContainerInput{
				RestartCount: 2,
				ImageRef:     "sha256:abc",
				ImageUID:     ptr.To[int64](0),
				PodIPs:       []string{"10.1.0.2", "fd00::2"},
				Volumes: map[string]volume.Mounted{
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

func TestConfigErrors(t *testing.T) {
	b := builder(t)
	uid := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		change func(p *v1.Pod, in *ContainerInput)
		want   string
	}{
		"root image": {func(p *v1.Pod, in *ContainerInput) { p.Spec.SecurityContext.RunAsNonRoot = ptr.To(true) },
			`container has runAsNonRoot and image will run as root (pod: "web_ns(0b5c-1)", container: main)`},
		"named user": {func(p *v1.Pod, in *ContainerInput) {
			p.Spec.SecurityContext.RunAsNonRoot = ptr.To(true)
			in.ImageUID, in.ImageUser = nil, "nginx"
		},
			`container has runAsNonRoot and image has non-numeric user (nginx), cannot verify user is non-root (pod: "web_ns(0b5c-1)", container: main)`},
		"asked to be root": {func(p *v1.Pod, in *ContainerInput) {
			p.Spec.SecurityContext.RunAsNonRoot, p.Spec.SecurityContext.RunAsUser = ptr.To(true), ptr.To[int64](0)
		}, `container's runAsUser breaks non-root policy (pod: "web_ns(0b5c-1)", container: main)`},
		"impossible user": {func(p *v1.Pod, in *ContainerInput) {
			p.Spec.SecurityContext.RunAsNonRoot = ptr.To(true)
			in.ImageUID = uid(1 << 40)
		}, "image has an invalid user id (1099511627776)"},
		"no config map": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{
				ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "x"}},
			}}
		}, `configmap "x" not found`},
		"no secret": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name: "A",
				ValueFrom: &v1.EnvVarSource{
					SecretKeyRef: &v1.SecretKeySelector{
						LocalObjectReference: v1.LocalObjectReference{Name: "x"},
						Key:                  "k",
					},
				},
			}}
		}, `secret "x" not found`},
		"no key": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name: "A",
				ValueFrom: &v1.EnvVarSource{
					ConfigMapKeyRef: &v1.ConfigMapKeySelector{
						LocalObjectReference: v1.LocalObjectReference{Name: "c"},
						Key:                  "k",
					},
				},
			}}
		}, "couldn't find key k in ConfigMap ns/c"},
		"not known": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{}}}
		}, "source that is not built"},
		"no env volume": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name:      "A",
				ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "x"}},
			}}
		}, `cannot find the volume "x" referenced by FileKeyRef`},
		"no env file": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name:      "A",
				ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "token", Path: "f"}},
			}}
		}, "couldn't parse env file"},
		"no volume": {func(_ *v1.Pod,
			in *ContainerInput) {
			in.Volumes = nil
		}, `cannot find volume "token" to mount into container "main"`},
		"subPath": {func(p *v1.Pod,
			_ *ContainerInput) {
			p.Spec.Containers[0].VolumeMounts[0].SubPath = "../x"
		}, "unable to provision SubPath"},
		"subPathExpr": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(Y)/$(X)/$(KUBERNETES_SERVICE_HOST)"
		}, "missing value for X, Y"},
		"recursive": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].VolumeMounts[0].RecursiveReadOnly = ptr.To(v1.RecursiveReadOnlyEnabled)
		},
			`failed to resolve recursive read-only mode: volume "token" requested recursive read-only mode, but it is not supported by the runtime`},
		"user namespaces": {func(p *v1.Pod, _ *ContainerInput) { p.Spec.HostUsers = ptr.To(false) }, "hostUsers"},
		"seccomp": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.SecurityContext.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost}
		}, "localhostProfile must be set"},
		"hostname": {func(p *v1.Pod, _ *ContainerInput) { p.Spec.Hostname = "A_B" }, "not a valid DNS label"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plainPod()
			in := ContainerInput{
				ImageUID: uid(0),
				PodIPs:   []string{"10.1.0.2"},
				Volumes:  map[string]volume.Mounted{"token": {HostPath: "/v"}},
			}
			c.change(p, &in)
			if err := b.Prepare(p); err != nil {
				t.Fatal(err)
			}
			_, err := b.Container(t.Context(), p, &p.Spec.Containers[0], in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v, want %q", err, c.want)
			}
		})
	}
	t.Run("services not read", func(t *testing.T) {
		b.Services = &links{}
		p := plainPod()
		if _, err := b.Container(t.Context(), p, &p.Spec.Containers[0], ContainerInput{}); err == nil ||
			!strings.Contains(err.Error(), "services have not yet been read") {
			t.Errorf("err = %v", err)
		}
	})
}

// TestMountsOfPaths: what a subPath, a subPathExpr and recursiveReadOnly make of a mount.
func TestMountsOfPaths(t *testing.T) {
	b := builder(t)
	b.Node.RecursiveReadOnly = func(p *v1.Pod) bool { return p.Name == "web" }
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "env"), []byte("FROM='file'\nOTHER='x'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := plainPod()
	c := &p.Spec.Containers[0]
	ref := func(key string, optional bool) *v1.EnvVarSource {
		return &v1.EnvVarSource{
			FileKeyRef: &v1.FileKeySelector{VolumeName: "token", Path: "env", Key: key, Optional: &optional},
		}
	}
	c.Env = []v1.EnvVar{{Name: "A", ValueFrom: ref("FROM", false)}, {Name: "NONE", ValueFrom: ref("MISSING", true)}}
	c.VolumeMounts = []v1.VolumeMount{
		{Name: "token", MountPath: "/whole"},
		{Name: "token", MountPath: "/sub", SubPath: "a/b"},
		{Name: "token", MountPath: "/expr", SubPathExpr: "$(A)/$$(A)"},
		{Name: "token", MountPath: "/ro", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)},
		{Name: "token", MountPath: "/maybe", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)},
	}
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	config, err := b.Container(t.Context(), p, c,
		ContainerInput{Volumes: map[string]volume.Mounted{"token": {HostPath: dir}}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range config.Mounts[:len(c.VolumeMounts)] {
		got = append(got, fmt.Sprintf("%s %s %v", m.ContainerPath, m.HostPath, m.RecursiveReadOnly))
	}
	bound := "/bound/0b5c-1/token/main/"
	want := []string{
		"/whole " + dir + " false", "/sub " + bound + "1" + dir + "/a/b false",
		"/expr " + bound + "2" + dir + "/file/$(A) false",
		"/ro " + dir + " true", "/maybe " + dir + " true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if config.Envs[0].Key != "A" || string(config.Envs[0].Value) != "file" ||
		slices.ContainsFunc(config.Envs, func(e *runtimeapi.KeyValue) bool { return e.Key == "NONE" }) {
		t.Errorf("variables %v", config.Envs)
	}
}

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

func TestLogs(t *testing.T) {
	b := builder(t)
	p := plainPod()
	c := &p.Spec.Containers[0]
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	if err := b.LinkLogs(p, c, 0, "id"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(b.Node.ContainerLogsDir); err == nil {
		t.Error("a link to no log")
	}
	dir := filepath.Join(PodLogDir(b.Node.PodLogsDir, "ns", "web", "0b5c-1"), "main")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "3.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.LinkLogs(p, c, 3, "id"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.Readlink(filepath.Join(b.Node.ContainerLogsDir, "web_ns_main-id.log")); err != nil ||
		got != filepath.Join(dir, "3.log") {
		t.Errorf("%q, %v", got, err)
	}
	if got := LogLink("/d", "ns", strings.Repeat("p", 253), "c", "id"); len(filepath.Base(got)) != 255 ||
		!strings.HasSuffix(got, ".log") {
		t.Errorf("%d characters", len(filepath.Base(got)))
	}
}

func TestFilesStay(t *testing.T) {
	b := builder(t)
	p := plainPod()
	c := &p.Spec.Containers[0]
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	in := ContainerInput{
		ImageUID: ptr.To[int64](0),
		PodIPs:   []string{"10.1.0.2"},
		Volumes:  map[string]volume.Mounted{"token": {HostPath: "/v"}},
	}
	hosts := filepath.Join(b.Node.PodDir(p.UID), "etc-hosts")
	start := func() os.FileInfo {
		config, err := b.Container(t.Context(), p, c, in)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(config.Mounts); n != 3 {
			t.Fatalf("%d mounts, want 3", n)
		}
		info, err := os.Stat(config.Mounts[2].HostPath)
		if err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("termination log: %v, %v", info, err)
		}
		info, err = os.Stat(hosts)
		if err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("hosts: %v, %v", info, err)
		}
		return info
	}
	first := start()
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(hosts, old, old); err != nil {
		t.Fatal(err)
	}
	if again := start(); !again.ModTime().Equal(old) || !os.SameFile(first, again) {
		t.Error("a hosts file that says what it should was written again")
	}
	in.PodIPs = []string{"10.1.0.9"}
	if changed := start(); changed.ModTime().Equal(old) || !os.SameFile(first, changed) {
		t.Error("a new address must go into the same file, which containers have mounted")
	}
	logs, err := os.ReadDir(filepath.Join(b.Node.PodDir(p.UID), "containers", "main"))
	if err != nil || len(logs) != 3 {
		t.Errorf("%d termination logs for 3 starts, %v", len(logs), err)
	}
	c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "token", MountPath: "/etc/hosts"})
	config, err := b.Container(t.Context(), p, c, in)
	if err != nil || len(config.Mounts) != 3 || config.Mounts[1].HostPath != "/v" {
		t.Errorf("a container's own /etc/hosts is mounted over: %v, %v", config, err)
	}
}

func TestUIDIsNoPath(t *testing.T) {
	b := builder(t)
	for _, uid := range []string{"", "..", "../x", "a/b"} {
		p := plainPod()
		p.UID = types.UID(uid)
		if err := b.Prepare(p); err == nil {
			t.Errorf("uid %q was taken for a folder", uid)
		}
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
func TestHostsFileThatAContainerMadeLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc-hosts")
	if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 256<<20)); err != nil {
		t.Fatal(err)
	}
	want := "127.0.0.1\tlocalhost\n"
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if err := writeInPlace(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
	goruntime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("a file of %d bytes took %d bytes of memory", len(want), took)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
}
