package criconfig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/podsync/internal/criconfig/internal/dns"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

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

type links struct{ synced bool }

func (l *links) Synced() bool { return l.synced }

func (l *links) Env(_ string, all bool) (map[string]string, error) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
	if all {
		env["DB_SERVICE_HOST"] = "10.96.0.2"
	}
	return env, nil
}

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
		DNS: dns.New(dns.Options{ClusterDomain: "cluster.local"}),
		Objects: &store{
			secrets:    map[string]map[string][]byte{"ns/s": {"password": []byte("secret")}},
			configMaps: map[string]map[string]string{"ns/c": {"b": "2", "a": "1"}},
		},
		Services: &links{synced: true},
		SubPaths: paths{},
	}
}

type paths struct{}

func (paths) SubPath(_ context.Context, s volumes.SubPath) (string, error) {
	if err := volumes.CheckSubPath(s.Path); err != nil {
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
		{Name: "WHO", Value: "you"}, {Name: "GREETING", Value: "hello $(WHO) at $(KUBERNETES_SERVICE_HOST), $(LATER)"},
		{Name: "LATER", Value: "x"}, {Name: "C_a", Value: "over"},
		{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1",
			FieldPath: "status.podIP"}}},
		{Name: "CPUS", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
		{Name: "PASSWORD",
			ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{
				Name: "s"}, Key: "password"}}},
		{Name: "SKIPPED",
			ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{
				Name: "c"}, Key: "none", Optional: ptr.To(true)}}},
		{Name: "EMPTY"},
	}
	return p
}

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

// usersPod has users of its own.
func usersPod() *v1.Pod {
	p := plainPod()
	p.Spec.HostUsers = ptr.To(false)
	p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{ProcMount: ptr.To(v1.UnmaskedProcMount)}
	return p
}

// users is the user namespace of a pod that has one.
func users(p *v1.Pod) *runtimeapi.UserNamespace {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers {
		return nil
	}
	ids := []*runtimeapi.IDMapping{{HostId: 131072, Length: 65536}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
}
