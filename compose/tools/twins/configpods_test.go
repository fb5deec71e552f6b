package twins

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"

	"sync"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
)

// settings are those of the node that decide what the runtime is given.
type settings struct {
	MemoryCapacity, SwapCapacity int64
	SwapController, CgroupV1     bool
	SwapBehavior                 string
	SingleProcessOOMKill         bool
	CPUCFSQuota                  bool
	Period                       time.Duration
	DefaultSysctls               map[string]string
	SeccompDefault               bool
	Factor                       *float64
	Reservation                  bool
	NoMemoryQoS, StopSignals     bool
	RecursiveReadOnly            bool
	Allocatable                  v1.ResourceList
	ClusterDomain                string
}

func drawSettings(s *Source) settings {
	n := settings{
		MemoryCapacity: OneOf(s, int64(8<<30), 1<<30, 123456789012), SwapCapacity: OneOf(s, int64(0), 2<<30),
		SwapController: s.Percent(60), SwapBehavior: OneOf(s, criconfig.NoSwap, criconfig.LimitedSwap),
		SingleProcessOOMKill: s.Percent(30), CPUCFSQuota: !s.Percent(20),
		Period:         OneOf(s, 100*time.Millisecond, 10*time.Millisecond, time.Second),
		SeccompDefault: s.Percent(30), Reservation: s.Percent(50), RecursiveReadOnly: s.Percent(60),
		ClusterDomain: OneOf(s, "cluster.local", "c", "a.rather.long.cluster.domain.example.org"),
		CgroupV1:      s.Percent(2), NoMemoryQoS: s.Percent(2), StopSignals: s.Percent(2),
	}
	if s.Percent(50) {
		n.Factor = new(OneOf(s, 0.9, 0.5, 0.1))
	}
	for range OneOf(s, 0, 0, 1, 3) {
		if n.DefaultSysctls == nil {
			n.DefaultSysctls = map[string]string{}
		}
		n.DefaultSysctls[OneOf(s, "net.core.somaxconn", "net/ipv4/tcp_syncookies", "kernel.msgmax", "kernel.shm_rmid_forced",
			"fs.mqueue.msg_max", "user.max_user_namespaces", "kernel.domainname", "net/ipv4/conf/eth0.1/forwarding")] =
			OneOf(s, "1", "2")
	}
	n.Allocatable = drawResources(s, []string{"2", "4"}, []string{"6Gi", "1000000000"}, 90)
	return n
}

// ours are the settings in our form, below that root.
func (n *settings) ours(root, logs string) criconfig.Node {
	node := criconfig.Node{
		RootDir: root, PodLogsDir: logs, HostsFile: "/etc/hosts", DefaultSysctls: n.DefaultSysctls,
		ClusterDomain: n.ClusterDomain, SeccompDefault: n.SeccompDefault, CPUCFSQuota: n.CPUCFSQuota,
		CPUCFSQuotaPeriod: n.Period, SingleProcessOOMKill: &n.SingleProcessOOMKill, SwapBehavior: n.SwapBehavior,
		MemoryQoS: !n.NoMemoryQoS, MemoryThrottlingFactor: n.Factor, MemoryReservation: n.Reservation,
		StopSignals: n.StopSignals, MemoryCapacity: n.MemoryCapacity, SwapCapacity: n.SwapCapacity,
		Unified: !n.CgroupV1, SwapController: n.SwapController,
		HugePageSizes: thisMachine().HugePageSizes, ThermalPaths: thisMachine().ThermalPaths,
		RecursiveReadOnly: func(*v1.Pod) bool { return n.RecursiveReadOnly },
		Allocatable:       func() v1.ResourceList { return n.Allocatable },
	}
	return node
}

// thisMachine has what the kubelet reads of the machine itself.
var thisMachine = sync.OnceValue(func() criconfig.Node {
	n, err := criconfig.DefaultNode("/")
	must(err)
	return n
})

func (n *settings) upstream(root, logs string) *kuberuntime.TwinSettings {
	return &kuberuntime.TwinSettings{
		RootDir: root, LogsDir: logs, MemoryCapacity: n.MemoryCapacity, SwapCapacity: n.SwapCapacity,
		SwapController: n.SwapController, SwapBehavior: n.SwapBehavior, SingleProcessOOMKill: &n.SingleProcessOOMKill,
		CPUCFSQuota: n.CPUCFSQuota, CPUCFSQuotaPeriod: n.Period, DefaultSysctls: n.DefaultSysctls,
		SeccompDefault: n.SeccompDefault, MemoryThrottlingFactor: n.Factor, MemoryReservation: n.Reservation,
		Allocatable: n.Allocatable,
	}
}

// globals are those of the kubelet's settings that it has once for all: they are changed by one input at a time.
var globals sync.RWMutex

func init() {
	kuberuntime.TwinCgroups(true)
	must(utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{"DefaultPodSysctls": true}))
}

// with calls the kubelet's function under the settings.
func (n *settings) with(call func()) {
	if !n.CgroupV1 && !n.NoMemoryQoS && !n.StopSignals {
		globals.RLock()
		defer globals.RUnlock()
		call()
		return
	}
	globals.Lock()
	defer globals.Unlock()
	set := func(unified, memoryQoS, stopSignals bool) {
		kuberuntime.TwinCgroups(unified)
		must(utilfeature.DefaultMutableFeatureGate.SetFromMap(
			map[string]bool{"MemoryQoS": memoryQoS, "ContainerStopSignals": stopSignals}))
	}
	set(!n.CgroupV1, !n.NoMemoryQoS, n.StopSignals)
	defer set(true, true, false)
	call()
}

// drawConfigPod draws a pod with all that decides its messages.
func drawConfigPod(s *Source) *v1.Pod {
	p := drawNamedPod(s)
	p.Name = OneOf(s, p.Name, p.Name, strings.Repeat("long", 18), strings.Repeat("a", 61)+"-.-b")
	spec := &p.Spec
	spec.HostNetwork, spec.HostPID, spec.HostIPC = s.Percent(15), s.Percent(10), s.Percent(10)
	spec.EnableServiceLinks = new(false)
	spec.ShareProcessNamespace = OneOf(s, nil, nil, new(true), new(false))
	spec.HostUsers = OneOf(s, nil, nil, nil, new(true), new(false))
	spec.Hostname = OneOf(s, "", "", "", "host", strings.Repeat("h", 63))
	spec.Subdomain = OneOf(s, "", "", "sub", strings.Repeat("s", 63))
	spec.SetHostnameAsFQDN = OneOf(s, nil, nil, new(true), new(false))
	if s.Percent(8) {
		spec.HostnameOverride = new(OneOf(s, "over", "over.example.org", strings.Repeat("o", 62)+".example.org"))
	}
	spec.TerminationGracePeriodSeconds = OneOf(s, new(int64(30)), nil, new(int64(0)))
	if s.Percent(5) {
		p.DeletionGracePeriodSeconds = new(int64(7))
	}
	spec.PriorityClassName = OneOf(s, "", "", "", "system-node-critical", "system-cluster-critical")
	if spec.PriorityClassName != "" {
		spec.Priority = new(OneOf(s, int32(2000001000), 2000000000))
	}
	for range OneOf(s, 0, 0, 0, 1, 2) {
		spec.HostAliases = append(spec.HostAliases, v1.HostAlias{IP: OneOf(s, "10.1.1.1", "fd09::1"),
			Hostnames: OneOf(s, []string{"a"}, []string{"a", "b.c"}, nil)})
	}
	if s.Percent(10) {
		spec.Overhead = drawResources(s, []string{"100m", "1"}, []string{"16Mi"}, 70)
	}
	if s.Percent(20) {
		spec.Resources = new(drawRequirements(s))
	}
	spec.SecurityContext = drawPodSecurity(s)
	for i := range OneOf(s, 1, 1, 2, 3) {
		spec.Containers = append(spec.Containers, drawConfigContainer(s, p, fmt.Sprintf("c%d", i)))
	}
	for i := range OneOf(s, 0, 0, 1, 2) {
		c := drawConfigContainer(s, p, fmt.Sprintf("i%d", i))
		if s.Percent(50) {
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	for i := range OneOf(s, 0, 0, 0, 1) {
		c := drawConfigContainer(s, p, fmt.Sprintf("e%d", i))
		c.Resources, c.Ports, c.Lifecycle = v1.ResourceRequirements{}, nil, nil
		spec.EphemeralContainers = append(spec.EphemeralContainers,
			v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(c)})
	}
	return p
}

func drawRequirements(s *Source) v1.ResourceRequirements {
	r := v1.ResourceRequirements{}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, "hugepages-2Mi", "hugepages-1Gi"} {
		limits := map[v1.ResourceName][]string{
			v1.ResourceCPU: {"1", "250m", "0", "3", "1m"}, v1.ResourceMemory: {"64Mi", "1Gi", "0", "100M", "12345"},
			"hugepages-2Mi": {"4Mi"}, "hugepages-1Gi": {"2Gi"},
		}[name]
		limit := resource.MustParse(OneOf(s, limits...))
		set := func(list *v1.ResourceList, q resource.Quantity) {
			if *list == nil {
				*list = v1.ResourceList{}
			}
			(*list)[name] = q
		}
		switch kind := OneOf(s, "", "", "limit", "request", "both", "equal"); {
		case kind == "":
		case len(limits) == 1:
			if kind == "equal" { // it cannot be overcommitted
				set(&r.Limits, limit)
				set(&r.Requests, limit)
			}
		case kind == "limit":
			set(&r.Limits, limit)
		case kind == "request":
			set(&r.Requests, limit)
		case kind == "equal":
			set(&r.Limits, limit)
			set(&r.Requests, limit)
		default:
			set(&r.Limits, limit)
			half := *resource.NewMilliQuantity(limit.MilliValue()/2, limit.Format)
			set(&r.Requests, half)
		}
	}
	return r
}

func drawSELinux(s *Source) *v1.SELinuxOptions {
	return OneOf(s, nil, nil, nil, &v1.SELinuxOptions{Level: "s0:c1,c2"},
		&v1.SELinuxOptions{User: "u", Role: "r", Type: "t"})
}

func drawSeccomp(s *Source) *v1.SeccompProfile {
	return OneOf(s, nil, nil, nil, &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
		&v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined},
		&v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: new("p/a.json")})
}

func drawAppArmor(s *Source) *v1.AppArmorProfile {
	return OneOf(s, nil, nil, nil, &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault},
		&v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined},
		&v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: new("k8s-x")})
}

// drawPodSecurity draws what the API server never leaves out.
func drawPodSecurity(s *Source) *v1.PodSecurityContext {
	sc := &v1.PodSecurityContext{
		RunAsUser: OneOf(s, nil, nil, new(int64(1000)), new(int64(0))), RunAsGroup: OneOf(s, nil, nil, new(int64(2000))),
		RunAsNonRoot: OneOf(s, nil, nil, nil, new(true), new(false)), FSGroup: OneOf(s, nil, nil, new(int64(3000))),
		SupplementalGroups: OneOf(s, nil, nil, []int64{4000}, []int64{4000, 3000, 4000}),
		SupplementalGroupsPolicy: OneOf(s, nil, nil, new(v1.SupplementalGroupsPolicyMerge),
			new(v1.SupplementalGroupsPolicyStrict)),
		SELinuxOptions: drawSELinux(s), SeccompProfile: drawSeccomp(s), AppArmorProfile: drawAppArmor(s),
	}
	for range OneOf(s, 0, 0, 0, 1, 2) {
		sc.Sysctls = append(sc.Sysctls, v1.Sysctl{Name: OneOf(s, "net.core.somaxconn", "net/core/somaxconn", "kernel.msgmax",
			"kernel/shm_rmid_forced", "net/ipv4/conf/eth0.1/forwarding", "net.ipv4.conf.eth0/1.forwarding"),
			Value: OneOf(s, "1", "0 9")})
	}
	return sc
}

func drawConfigContainer(s *Source, p *v1.Pod, name string) v1.Container {
	c := v1.Container{
		Name: name, Image: OneOf(s, "image:1", "registry.example/a/b@sha256:11", "b"), Resources: drawRequirements(s),
		Stdin: s.Percent(10), StdinOnce: s.Percent(10), TTY: s.Percent(10), WorkingDir: OneOf(s, "", "", "/work"),
		TerminationMessagePath:   OneOf(s, "/dev/termination-log", "/dev/termination-log", "relative", ""),
		TerminationMessagePolicy: OneOf(s, v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError),
		SecurityContext:          drawSecurity(s),
	}
	for i := range OneOf(s, 0, 0, 1, 2, 3) {
		port := v1.ContainerPort{
			ContainerPort: OneOf(s, int32(80), 53), Protocol: OneOf(s, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP),
			HostPort: OneOf(s, int32(0), 0, 8080), HostIP: OneOf(s, "", "", "10.0.0.1", "::1", "0.0.0.0"),
		}
		if s.Percent(30) {
			port.Name = fmt.Sprint("p", i)
		}
		c.Ports = append(c.Ports, port)
	}
	if s.Percent(20) {
		c.Lifecycle = &v1.Lifecycle{}
		argument := OneOf(s, "a", "<b> & \"c\"", strings.Repeat("x", 8<<10))
		c.Lifecycle.PreStop = OneOf(s, nil, &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 3}},
			&v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"stop", argument}}})
		c.Lifecycle.StopSignal = OneOf(s, nil, new(v1.SIGUSR1), new(v1.SIGRTMINPLUS3), new(v1.SIGRTMAXMINUS1))
	}
	if s.Percent(8) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+name] =
			OneOf(s, "runtime/default", "unconfined", "localhost/foo", "localhost/", "", "other")
	}
	return c
}

func drawSecurity(s *Source) *v1.SecurityContext {
	if s.Percent(40) {
		return nil
	}
	return &v1.SecurityContext{
		Capabilities: OneOf(s, nil, nil, &v1.Capabilities{}, &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN", "CHOWN"}},
			&v1.Capabilities{Add: []v1.Capability{"ALL"}, Drop: []v1.Capability{"ALL", "KILL"}}),
		Privileged: OneOf(s, nil, nil, new(true), new(false)), SELinuxOptions: drawSELinux(s),
		RunAsUser: OneOf(s, nil, nil, new(int64(1001)), new(int64(0))), RunAsGroup: OneOf(s, nil, nil, new(int64(2001))),
		RunAsNonRoot:             OneOf(s, nil, nil, nil, new(true), new(false)),
		ReadOnlyRootFilesystem:   OneOf(s, nil, nil, new(true), new(false)),
		AllowPrivilegeEscalation: OneOf(s, nil, nil, new(true), new(false)),
		ProcMount:                OneOf(s, nil, nil, new(v1.DefaultProcMount), new(v1.UnmaskedProcMount)),
		SeccompProfile:           drawSeccomp(s), AppArmorProfile: drawAppArmor(s),
	}
}

// userNamespace is the one of a pod that has its own.
func userNamespace(p *v1.Pod) *runtimeapi.UserNamespace {
	if p.Spec.HostUsers == nil || *p.Spec.HostUsers {
		return nil
	}
	ids := func() []*runtimeapi.IDMapping { return []*runtimeapi.IDMapping{{HostId: 131072, Length: 65536}} }
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids(), Gids: ids()}
}
