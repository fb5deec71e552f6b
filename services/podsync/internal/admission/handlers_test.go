package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/kubeversion"
)

func list(pairs ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func testNode() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a", v1.LabelOSStable: "linux"}},
		Status: v1.NodeStatus{Allocatable: list("cpu", "2", "memory", "1Gi", "ephemeral-storage", "10Gi", "pods", "3",
			"hugepages-2Mi", "4Mi", "example.com/gpu", "1")},
	}
}

func requesting(name string, pairs ...string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
		Spec: v1.PodSpec{NodeName: "n", Containers: []v1.Container{{
			Name: "c", Resources: v1.ResourceRequirements{Requests: list(pairs...)},
		}}},
	}
}

func onPort(name, ip string, port int32, protocol v1.Protocol) *v1.Pod {
	p := requesting(name)
	p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostIP: ip, HostPort: port, ContainerPort: 80, Protocol: protocol}}
	return p
}

func changed(p *v1.Pod, change func(p *v1.Pod)) *v1.Pod {
	change(p)
	return p
}

func important(p *v1.Pod) *v1.Pod {
	p.Spec.Priority = new(int32(2_000_000_000))
	return p
}

func TestContainerNumber(t *testing.T) {
	p := func(init, regular, ephemeral int) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{
			InitContainers: make([]v1.Container, init), Containers: make([]v1.Container, regular),
			EphemeralContainers: make([]v1.EphemeralContainer, ephemeral),
		}}
	}
	for _, test := range []struct {
		pod  *v1.Pod
		want string
	}{
		{p(MaxContainers-2, 1, 1), ""},
		{p(MaxContainers, 1, 0), ReasonTooManyContainers},
		{p(0, MaxContainers, 1), ReasonTooManyContainers},
		{p(15000, 1, 0), ReasonTooManyContainers},
	} {
		v := ContainerNumber{}.Admit(t.Context(), &Attributes{Pod: test.pod})
		if v.Reason != test.want || test.want != "" && !strings.Contains(v.Message, "a pod may have 2000 on this node") {
			t.Errorf("%+v, want the reason %q", v, test.want)
		}
	}
}

func TestNodeFit(t *testing.T) {
	const predicate = "Predicate %s failed: "
	always := v1.ContainerRestartPolicyAlways
	strict := v1.SupplementalGroupsPolicyStrict
	for _, test := range []struct {
		name            string
		pod             *v1.Pod
		others          []*v1.Pod
		node            func(*v1.Node)
		reason, message string
	}{
		{name: "fits", pod: requesting("p", "cpu", "2", "memory", "1Gi")},
		{name: "asks for nothing", pod: requesting("p"), others: []*v1.Pod{requesting("o", "cpu", "5")}},
		{
			name:    "cpu",
			pod:     requesting("p", "cpu", "1500m"),
			others:  []*v1.Pod{requesting("o", "cpu", "600m")},
			reason:  "OutOfcpu",
			message: "Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000",
		},
		{
			name: "overhead that the node does not know",
			pod: changed(requesting("p", "example.com/none", "1"), func(p *v1.Pod) {
				p.Spec.Overhead = list("example.com/none", "2")
			}),
			reason:  "OutOfexample.com/none",
			message: "Node didn't have enough resource: example.com/none, requested: 2, used: 0, capacity: 0",
		},
		{
			name: "its own OS without the label",
			pod: changed(requesting("p"), func(p *v1.Pod) {
				p.Spec.NodeSelector = map[string]string{v1.LabelOSStable: "linux"}
			}),
			node: func(n *v1.Node) { delete(n.Labels, v1.LabelOSStable) },
		},
		{
			name:    "memory",
			pod:     requesting("p", "memory", "2Gi"),
			reason:  "OutOfmemory",
			message: "Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824",
		},
		{
			name:   "memory beyond any number",
			pod:    requesting("p", "memory", "1e19"),
			reason: "OutOfmemory",
			message: "Node didn't have enough resource: memory, requested: 9223372036854775807, used: 0, capacity: " +
				"1073741824",
		},
		{
			name: "memory of two containers with a sum beyond any number",
			pod: changed(requesting("p", "memory", "8Ei"), func(p *v1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
			}),
			reason: "OutOfmemory",
			message: "Node didn't have enough resource: memory, requested: 9223372036854775807, used: 0, capacity: " +
				"1073741824",
		},
		{
			name:    "CPUs beyond any number",
			pod:     requesting("p", "cpu", "1e16"),
			reason:  "OutOfcpu",
			message: "Node didn't have enough resource: cpu, requested: 9223372036854775807, used: 0, capacity: 2000",
		},
		{
			name:    "beside pods that run and request more than any number",
			pod:     requesting("p", "cpu", "1"),
			others:  []*v1.Pod{requesting("a", "cpu", "9e15"), requesting("b", "cpu", "9e15")},
			reason:  "OutOfcpu",
			message: "Node didn't have enough resource: cpu, requested: 1000, used: 9223372036854775807, capacity: 2000",
		},
		{
			name: "memory, with overhead",
			pod: changed(requesting("p", "memory", "1Gi"),
				func(p *v1.Pod) { p.Spec.Overhead = list("memory", "1Mi") }),
			reason:  "OutOfmemory",
			message: "Node didn't have enough resource: memory, requested: 1074790400, used: 0, capacity: 1073741824",
		},
		{
			name:   "storage",
			pod:    requesting("p", "ephemeral-storage", "11Gi"),
			reason: "OutOfephemeral-storage",
			message: "Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: " +
				"10737418240",
		},
		{
			name: "pods", pod: requesting("p"), others: []*v1.Pod{requesting("a"), requesting("b"), requesting("c")},
			reason: "OutOfpods", message: "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
		},
		{
			name:    "huge pages",
			pod:     requesting("p", "hugepages-2Mi", "4Mi"),
			others:  []*v1.Pod{requesting("a", "hugepages-2Mi", "2Mi")},
			reason:  "OutOfhugepages-2Mi",
			message: "Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 2097152, capacity: 4194304",
		},
		{
			name:    "extended resource that the node has",
			pod:     requesting("p", "example.com/gpu", "2"),
			reason:  "OutOfexample.com/gpu",
			message: "Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1",
		},
		{name: "extended resource that is not the node's", pod: requesting("p", "example.com/licence", "2")},
		{
			name: "pod-level requests",
			pod: changed(requesting("p"), func(p *v1.Pod) {
				p.Spec.Resources = &v1.ResourceRequirements{Requests: list("cpu", "3")}
			}),
			reason:  "OutOfcpu",
			message: "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
		{
			name:    "the first shortage is reported",
			pod:     requesting("p", "memory", "2Gi", "cpu", "3"),
			reason:  "OutOfcpu",
			message: "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
		},
		{
			name:    "node selector",
			pod:     changed(requesting("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }),
			reason:  "NodeAffinity",
			message: predicate + "node(s) didn't match Pod's node affinity/selector",
		},
		{
			name: "node affinity", pod: changed(requesting("p"), func(p *v1.Pod) {
				p.Spec.Affinity = &v1.Affinity{
					NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
						NodeSelectorTerms: []v1.NodeSelectorTerm{{
							MatchExpressions: []v1.NodeSelectorRequirement{{
								Key:      "zone",
								Operator: v1.NodeSelectorOpNotIn,
								Values:   []string{"a"},
							}},
						}},
					}},
				}
			}),
			reason: "NodeAffinity", message: predicate + "node(s) didn't match Pod's node affinity/selector",
		},
		{
			name: "node name", pod: changed(requesting("p"), func(p *v1.Pod) { p.Spec.NodeName = "other" }),
			reason: "NodeName", message: predicate + "node(s) didn't match the requested node name",
		},
		{
			name:    "port",
			pod:     onPort("p", "", 8080, v1.ProtocolTCP),
			others:  []*v1.Pod{onPort("o", "192.0.2.1", 8080, "")},
			reason:  "NodePorts",
			message: predicate + "node(s) didn't have free ports for the requested pod ports",
		},
		{
			name: "port of a sidecar", pod: onPort("p", "0.0.0.0", 8080, v1.ProtocolTCP),
			others: []*v1.Pod{changed(requesting("o"), func(p *v1.Pod) {
				p.Spec.InitContainers = []v1.Container{{
					Name:          "s",
					RestartPolicy: &always,
					Ports:         []v1.ContainerPort{{HostPort: 8080}},
				}}
			})},
			reason: "NodePorts", message: predicate + "node(s) didn't have free ports for the requested pod ports",
		},
		{
			name: "port of an init container is free again",
			pod:  onPort("p", "", 8080, v1.ProtocolTCP),
			others: []*v1.Pod{changed(requesting("o"), func(p *v1.Pod) {
				p.Spec.InitContainers = []v1.Container{{Name: "i", Ports: []v1.ContainerPort{{HostPort: 8080}}}}
			})},
		},
		{name: "port of another address", pod: onPort("p", "192.0.2.2", 8080, v1.ProtocolTCP),
			others: []*v1.Pod{onPort("o", "192.0.2.1", 8080, v1.ProtocolTCP)}},
		{name: "port of another protocol", pod: onPort("p", "", 8080, v1.ProtocolUDP),
			others: []*v1.Pod{onPort("o", "", 8080, v1.ProtocolTCP)}},
		{
			name:    "taint",
			pod:     requesting("p"),
			node:    func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}} },
			reason:  "TaintToleration",
			message: predicate + "node(s) had taints that the pod didn't tolerate",
		},
		{name: "taint for the scheduler alone", pod: requesting("p"),
			node: func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}} }},
		{
			name: "taint and a static pod",
			pod: changed(requesting("p"),
				func(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }),
			node: func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}} },
		},
		{
			name:    "operating system",
			pod:     changed(requesting("p"), func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }),
			reason:  "PodOSNotSupported",
			message: "Failed to admit pod as the OS field doesn't match node OS",
		},
		{
			name: "operating system's label",
			pod: changed(requesting("p"),
				func(p *v1.Pod) { p.Labels = map[string]string{v1.LabelOSStable: "windows"} }),
			reason:  "PodOSSelectorNodeLabelDoesNotMatch",
			message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		},
		{
			name: "supplemental groups",
			pod: changed(requesting("p"), func(p *v1.Pod) {
				p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
			}),
			reason:  "SupplementalGroupsPolicyNotSupported",
			message: "SupplementalGroupsPolicy=Strict is not supported in this node",
		},
		{
			name: "supplemental groups where there are", pod: changed(requesting("p"), func(p *v1.Pod) {
				p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
			}),
			node: func(n *v1.Node) { n.Status.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: new(true)} },
		},
		{
			name:   "a critical pod that nothing can make fit",
			pod:    important(requesting("p", "cpu", "3")),
			others: []*v1.Pod{requesting("o", "cpu", "500m")},
			reason: "UnexpectedAdmissionError",
			message: "Unexpected error while attempting to recover from admission failure: " +
				"preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: " +
				"cpu, q: 1000), ]",
		},
		{
			name: "a critical pod with a taken port preempts no pod",
			pod: important(changed(onPort("p", "", 80, ""), func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Requests = list("cpu", "2")
			})),
			others: []*v1.Pod{changed(onPort("o", "", 80, ""),
				func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests = list("cpu", "1") })},
			reason:  "NodePorts",
			message: predicate + "node(s) didn't have free ports for the requested pod ports",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := testNode()
			if test.node != nil {
				test.node(n)
			}
			v := NodeFit{}.Admit(t.Context(), &Attributes{Pod: test.pod, Others: test.others, Node: n})
			want := strings.ReplaceAll(test.message, "%s", test.reason)
			if v.Reason != test.reason || v.Message != want || v.Preempt != nil {
				t.Errorf("got %+v, want %s: %s", v, test.reason, want)
			}
		})
	}
}

func TestNodeFitPreempts(t *testing.T) {
	victim := requesting("victim", "cpu", "1")
	v := NodeFit{}.Admit(t.Context(), &Attributes{
		Pod:    important(requesting("p", "cpu", "1500m")),
		Others: []*v1.Pod{requesting("small", "cpu", "100m"), victim},
		Node:   testNode(),
	})
	want := Result{Preempt: &Preemption{Victims: []*v1.Pod{victim}, Signal: v1.ResourceCPU}}
	if d := cmp.Diff(want, v); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestNodeFitSaysWhenTheLabelsDecide(t *testing.T) {
	p := changed(requesting("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} })
	if v := (NodeFit{}).Admit(t.Context(), &Attributes{Pod: p, Node: testNode()}); !v.NodeMayBeOld {
		t.Error("the labels alone decided")
	}
	p.Spec.NodeName = "other"
	if v := (NodeFit{}).Admit(t.Context(), &Attributes{Pod: p, Node: testNode()}); v.NodeMayBeOld {
		t.Error("no label could make this pod fit")
	}
}

func TestSysctls(t *testing.T) {
	s, err := NewSysctls([]string{"kernel.msg*", "net/core/somaxconn", "user.max_user_namespaces"}, "6.1.0-18-amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		sysctl, message string
		spec            v1.PodSpec
	}{
		{sysctl: "kernel.shm_rmid_forced"},
		{sysctl: "net/ipv4/tcp_syncookies"},
		{sysctl: "net.ipv4.tcp_rmem"},
		{sysctl: "kernel.msgmax"},
		{sysctl: "net.core.somaxconn"},
		{sysctl: "kernel.sem", message: `forbidden sysctl: "kernel.sem" not allowlisted`},
		{sysctl: "kernel.msgmax", spec: v1.PodSpec{HostIPC: true},
			message: `forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`},
		{sysctl: "net.ipv4.tcp_syncookies", spec: v1.PodSpec{HostNetwork: true},
			message: `forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`},
		{sysctl: "user.max_user_namespaces",
			message: `forbidden sysctl: "user.max_user_namespaces" not allowed with host User enabled`},
		{sysctl: "user.max_user_namespaces", spec: v1.PodSpec{HostUsers: new(false)}},
	} {
		p := &v1.Pod{Spec: test.spec}
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: test.sysctl, Value: "1"}}}
		v := s.Admit(t.Context(), &Attributes{Pod: p})
		if v.Message != test.message || v.Admitted() != (test.message == "") ||
			!v.Admitted() && v.Reason != "SysctlForbidden" {
			t.Errorf("%s: %+v, want %q", test.sysctl, v, test.message)
		}
	}
	if v := s.Admit(t.Context(), &Attributes{Pod: &v1.Pod{}}); !v.Admitted() {
		t.Errorf("no sysctl: %+v", v)
	}
}

func TestSafeSysctlsFollowTheKernel(t *testing.T) {
	p := &v1.Pod{
		Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.ipv4.tcp_rmem"}}}},
	}
	for kernel, safe := range map[string]bool{"4.14.9": false, "4.15.0": true, "6.12.1+deb13": true} {
		s, err := NewSysctls(nil, kernel)
		if err != nil {
			t.Fatal(err)
		}
		if v := s.Admit(t.Context(), &Attributes{Pod: p}); v.Admitted() != safe {
			t.Errorf("kernel %s: %+v", kernel, v)
		}
	}
}

func TestSysctlPatternsThatCannotBe(t *testing.T) {
	for _, pattern := range []string{"vm.overcommit_memory", "Net.Ipv4", "net.*.x", "net..x",
		strings.Repeat("net.", 80) + "x", ""} {
		if _, err := NewSysctls([]string{pattern}, "6.1"); err == nil ||
			!strings.Contains(err.Error(), "allowedUnsafeSysctls") {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

func TestAppArmor(t *testing.T) {
	confined := func(of v1.AppArmorProfileType) *v1.Pod {
		return &v1.Pod{
			Spec: v1.PodSpec{
				SecurityContext: &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: of}},
				Containers:      []v1.Container{{Name: "c"}},
			},
		}
	}
	for _, test := range []struct {
		name    string
		enabled bool
		pod     *v1.Pod
		message string
	}{
		{"not asked for", false, &v1.Pod{}, ""},
		{"unconfined", false, confined(v1.AppArmorProfileTypeUnconfined), ""},
		{"not there", false, confined(v1.AppArmorProfileTypeRuntimeDefault),
			"Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		{"there", true, confined(v1.AppArmorProfileTypeRuntimeDefault), ""},
		{"runs already", false, changed(confined(v1.AppArmorProfileTypeRuntimeDefault),
			func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }), ""},
		{"by annotation", false,
			&v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}}},
			"Cannot enforce AppArmor: AppArmor is not enabled on the host"},
	} {
		v := AppArmor{Enabled: test.enabled}.Admit(t.Context(), &Attributes{Pod: test.pod})
		if v.Message != test.message || v.Admitted() != (test.message == "") {
			t.Errorf("%s: %+v", test.name, v)
		}
	}
	v := AppArmor{Enabled: true}.Admit(t.Context(), &Attributes{Pod: confined(v1.AppArmorProfileTypeLocalhost)})
	if !strings.HasPrefix(v.Message, "Cannot enforce AppArmor: invalid empty AppArmor profile name") {
		t.Errorf("a profile without a name: %+v", v)
	}
}

func TestFeatures(t *testing.T) {
	podLevel := &v1.Pod{Spec: v1.PodSpec{Resources: &v1.ResourceRequirements{Requests: list("cpu", "1")}}}
	if v := (PodLevelResources{}).Admit(t.Context(),
		&Attributes{Pod: podLevel}); v.Reason != "PodLevelResourcesNotSupported" {
		t.Errorf("the gate is off: %+v", v)
	}
	if v := (PodLevelResources{Enabled: true}).Admit(t.Context(), &Attributes{Pod: podLevel}); !v.Admitted() {
		t.Errorf("the gate is on: %+v", v)
	}

	const feature = "RestartAllContainersOnContainerExits"
	restarting := &v1.Pod{
		Spec: v1.PodSpec{
			Containers: []v1.Container{{
				RestartPolicyRules: []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}},
			}},
		},
	}
	for _, declared := range [][]string{nil, {feature}} {
		h, err := NewDeclaredFeatures(declared, kubeversion.Version)
		if err != nil {
			t.Fatal(err)
		}
		v := h.Admit(t.Context(), &Attributes{Pod: restarting})
		if v.Admitted() != (len(declared) == 1) {
			t.Errorf("declared %v: %+v", declared, v)
		}
		if !v.Admitted() && v.Message != "Pod requires node features that are not available: "+feature {
			t.Errorf("message %q", v.Message)
		}
		if v := h.Admit(t.Context(), &Attributes{Pod: &v1.Pod{}}); !v.Admitted() {
			t.Errorf("a plain pod: %+v", v)
		}
	}
}

// TestUpdatesNeedFeatures: a newer version of a pod may need a feature that the node lacks.
func TestUpdatesNeedFeatures(t *testing.T) {
	const podLevel, initContainers = "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"
	p := &v1.Pod{Spec: v1.PodSpec{
		Resources:      &v1.ResourceRequirements{Requests: list("cpu", "1")},
		InitContainers: []v1.Container{{Name: "prepare"}},
		Containers:     []v1.Container{{Name: "main"}},
	}}
	for _, test := range []struct {
		name   string
		change func(p *v1.Pod)
		needs  string
	}{
		{"nothing", func(*v1.Pod) {}, ""},
		{"a container", func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests = list("cpu", "2") }, ""},
		{"the pod", func(p *v1.Pod) { p.Spec.Resources.Requests = list("cpu", "2") }, podLevel},
		{"an init container", func(p *v1.Pod) { p.Spec.InitContainers[0].Resources.Requests = list("cpu", "2") },
			initContainers},
		{"another number of init containers", func(p *v1.Pod) { p.Spec.InitContainers = nil }, ""},
	} {
		for _, declared := range [][]string{nil, {podLevel, initContainers}} {
			h, err := NewDeclaredFeatures(declared, kubeversion.Version)
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if test.needs != "" && declared == nil {
				want = "Pod requires node features that are not available: " + test.needs
			}
			if got := h.Update(p, changed(p.DeepCopy(), test.change)); got != want {
				t.Errorf("%s with %v declared: %q, want %q", test.name, declared, got, want)
			}
		}
	}
}

func TestPressure(t *testing.T) {
	under := func(types ...v1.NodeConditionType) []v1.NodeConditionType { return types }
	tolerant := changed(requesting("p"), func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists}}
	})
	for _, test := range []struct {
		name    string
		pod     *v1.Pod
		under   []v1.NodeConditionType
		message string
	}{
		{"none", requesting("p"), nil, ""},
		{"disk", requesting("p", "cpu", "1"), under(v1.NodeDiskPressure), "The node had condition: [DiskPressure]. "},
		{"disk and a critical pod", important(requesting("p")), under(v1.NodeDiskPressure), ""},
		{"memory and a pod without requests", requesting("p"), under(v1.NodeMemoryPressure),
			"The node had condition: [MemoryPressure]. "},
		{"memory and a pod with requests", requesting("p", "memory", "1Mi"), under(v1.NodeMemoryPressure), ""},
		{"memory and a toleration", tolerant, under(v1.NodeMemoryPressure), ""},
		{"memory, PIDs and a toleration", tolerant, under(v1.NodeMemoryPressure, v1.NodePIDPressure),
			"The node had condition: [MemoryPressure PIDPressure]. "},
	} {
		h := Pressure{Under: func() []v1.NodeConditionType { return test.under }}
		v := h.Admit(t.Context(), &Attributes{Pod: test.pod, Node: testNode()})
		if v.Message != test.message || v.Admitted() != (test.message == "") || !v.Admitted() && v.Reason != "Evicted" {
			t.Errorf("%s: %+v", test.name, v)
		}
	}
}
