package criconfig

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
)

// secured is a pod with two contexts, either of which may be nil.
func secured(pod *v1.PodSecurityContext, container *v1.SecurityContext) *v1.Pod {
	return &v1.Pod{
		Spec: v1.PodSpec{SecurityContext: pod, Containers: []v1.Container{{Name: "c", SecurityContext: container}}},
	}
}

func securityOf(t *testing.T, p *v1.Pod, in ContainerInput) *runtimeapi.LinuxContainerSecurityContext {
	t.Helper()
	sc, err := containerSecurity(p, &p.Spec.Containers[0], &in, &Node{RootDir: "/kubelet"})
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

func TestTheContainersContextComesFirst(t *testing.T) {
	pod := &v1.PodSecurityContext{
		RunAsUser:          new(int64(1)),
		RunAsGroup:         new(int64(2)),
		RunAsNonRoot:       new(true),
		SELinuxOptions:     &v1.SELinuxOptions{Level: "s0"},
		FSGroup:            new(int64(3)),
		SupplementalGroups: []int64{4, 5},
	}
	inherited := securityOf(t, secured(pod, nil), ContainerInput{})
	if inherited.GetRunAsUser().GetValue() != 1 || inherited.GetRunAsGroup().GetValue() != 2 ||
		inherited.GetSelinuxOptions().GetLevel() != "s0" {
		t.Errorf("inherited: %v", inherited)
	}
	own := securityOf(t, secured(pod, &v1.SecurityContext{
		RunAsUser: new(int64(7)), RunAsGroup: new(int64(8)), SELinuxOptions: &v1.SELinuxOptions{Level: "s1"},
	}), ContainerInput{})
	if own.GetRunAsUser().GetValue() != 7 || own.GetRunAsGroup().GetValue() != 8 ||
		own.GetSelinuxOptions().GetLevel() != "s1" {
		t.Errorf("own: %v", own)
	}
	for _, sc := range []*runtimeapi.LinuxContainerSecurityContext{inherited, own} {
		if d := cmp.Diff([]int64{3, 4, 5}, sc.GetSupplementalGroups()); d != "" {
			t.Errorf("groups: -want +got\n%s", d)
		}
	}
}

func TestTheImagesUserIsTheLastToDecide(t *testing.T) {
	image := ContainerInput{ImageUID: new(int64(99))}
	if sc := securityOf(t, secured(nil, nil), image); sc.GetRunAsUser().GetValue() != 99 {
		t.Errorf("by number: %v", sc)
	}
	named := securityOf(t, secured(nil, nil), ContainerInput{ImageUser: "www"})
	if named.GetRunAsUser() != nil || named.GetRunAsUsername() != "www" {
		t.Errorf("by name: %v", named)
	}
	if sc := securityOf(t, secured(nil, &v1.SecurityContext{RunAsUser: new(int64(0))}),
		image); sc.GetRunAsUser().GetValue() != 0 {
		t.Errorf("root by the pod's wish: %v", sc)
	}
}

func TestGroupsPolicy(t *testing.T) {
	strict, wrong := v1.SupplementalGroupsPolicyStrict, v1.SupplementalGroupsPolicy("Loose")
	if sc := securityOf(t, secured(&v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}, nil),
		ContainerInput{}); sc.GetSupplementalGroupsPolicy() != runtimeapi.SupplementalGroupsPolicy_Strict {
		t.Errorf("strict: %v", sc.GetSupplementalGroupsPolicy())
	}
	p := secured(&v1.PodSecurityContext{SupplementalGroupsPolicy: &wrong}, nil)
	if _, err := containerSecurity(p, &p.Spec.Containers[0], &ContainerInput{}, &Node{}); err == nil ||
		err.Error() != "unsupported supplementalGroupsPolicy: Loose" {
		t.Errorf("unknown: %v", err)
	}
}

func TestPrivileges(t *testing.T) {
	sc := securityOf(t, secured(nil, &v1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}},
	}), ContainerInput{})
	if !sc.GetNoNewPrivs() || !sc.GetReadonlyRootfs() || sc.GetPrivileged() {
		t.Errorf("confined: %v", sc)
	}
	if d := cmp.Diff([]string{"NET_ADMIN"}, sc.GetCapabilities().GetAddCapabilities()) + cmp.Diff([]string{"ALL"},
		sc.GetCapabilities().GetDropCapabilities()); d != "" {
		t.Errorf("capabilities: -want +got\n%s", d)
	}
	p := secured(nil, &v1.SecurityContext{Privileged: new(true)})
	if sc := securityOf(t, p, ContainerInput{}); !sc.GetPrivileged() || sc.GetNoNewPrivs() ||
		sc.GetCapabilities() != nil {
		t.Errorf("privileged: %v", sc)
	}
	sandbox, err := sandboxSecurity(p, nil)
	if err != nil || !sandbox.GetPrivileged() {
		t.Errorf("its sandbox: %v, %v", sandbox, err)
	}
}

func TestProcMount(t *testing.T) {
	masked := securityOf(t, secured(nil, nil), ContainerInput{})
	if len(masked.GetMaskedPaths()) == 0 || len(masked.GetReadonlyPaths()) == 0 {
		t.Error("nothing is masked by default")
	}
	unmasked := v1.UnmaskedProcMount
	open := securityOf(t, secured(nil, &v1.SecurityContext{ProcMount: &unmasked}), ContainerInput{})
	if open.GetMaskedPaths() == nil || len(open.GetMaskedPaths())+len(open.GetReadonlyPaths()) != 0 {
		t.Errorf("unmasked: %v %v", open.GetMaskedPaths(), open.GetReadonlyPaths())
	}
}

func TestSeccomp(t *testing.T) {
	profile := func(of v1.SeccompProfileType, name string) *v1.SeccompProfile {
		p := &v1.SeccompProfile{Type: of}
		if name != "" {
			p.LocalhostProfile = &name
		}
		return p
	}
	const (
		unconfined = runtimeapi.SecurityProfile_Unconfined
		byRuntime  = runtimeapi.SecurityProfile_RuntimeDefault
		localhost  = runtimeapi.SecurityProfile_Localhost
	)
	for _, test := range []struct {
		name           string
		pod, container *v1.SeccompProfile
		byDefault      bool
		want           runtimeapi.SecurityProfile_ProfileType
		ref            string
	}{
		{"none", nil, nil, false, unconfined, ""},
		{"none, with seccompDefault", nil, nil, true, byRuntime, ""},
		{"unconfined, with seccompDefault", profile(v1.SeccompProfileTypeUnconfined, ""), nil, true, unconfined, ""},
		{"the pod's", profile(v1.SeccompProfileTypeRuntimeDefault, ""), nil, false, byRuntime, ""},
		{"the container's before the pod's", profile(v1.SeccompProfileTypeRuntimeDefault, ""),
			profile(v1.SeccompProfileTypeUnconfined, ""), false, unconfined, ""},
		{"a file", nil, profile(v1.SeccompProfileTypeLocalhost, "audit.json"), false, localhost,
			"/kubelet/seccomp/audit.json"},
		{"a file in a folder", profile(v1.SeccompProfileTypeLocalhost, "team/audit.json"), nil, true, localhost,
			"/kubelet/seccomp/team/audit.json"},
	} {
		p := secured(&v1.PodSecurityContext{SeccompProfile: test.pod},
			&v1.SecurityContext{SeccompProfile: test.container})
		got, err := seccomp(p, &p.Spec.Containers[0], &Node{RootDir: "/kubelet", SeccompDefault: test.byDefault})
		if err != nil || got.GetProfileType() != test.want || got.GetLocalhostRef() != filepath.FromSlash(test.ref) {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
	}
	p := secured(nil, &v1.SecurityContext{SeccompProfile: profile(v1.SeccompProfileTypeLocalhost, "")})
	if _, err := seccomp(p, &p.Spec.Containers[0], &Node{}); err == nil ||
		!strings.HasPrefix(err.Error(), "localhostProfile must be set") {
		t.Errorf("a file without a name: %v", err)
	}
}

func TestAppArmorProfiles(t *testing.T) {
	local := "web"
	pod := &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}}
	own := &v1.SecurityContext{
		AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &local},
	}
	annotated := secured(pod, nil)
	annotated.Annotations = map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "c": "unconfined"}
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		want runtimeapi.SecurityProfile_ProfileType
		old  string
	}{
		{"the pod's", secured(pod, nil), runtimeapi.SecurityProfile_RuntimeDefault, "runtime/default"},
		{"the container's", secured(pod, own), runtimeapi.SecurityProfile_Localhost, "localhost/web"},
		{"the annotation before the pod's", annotated, runtimeapi.SecurityProfile_Unconfined, "unconfined"},
	} {
		got, old, err := appArmor(test.pod, &test.pod.Spec.Containers[0])
		if err != nil || got.GetProfileType() != test.want || old != test.old {
			t.Errorf("%s: %v, %q, %v", test.name, got, old, err)
		}
	}
}

func TestNamespaces(t *testing.T) {
	const (
		ofPod, ofNode, ofContainer = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE,
			runtimeapi.NamespaceMode_CONTAINER
	)
	for _, test := range []struct {
		name              string
		spec              v1.PodSpec
		network, ipc, pid runtimeapi.NamespaceMode
	}{
		{"default", v1.PodSpec{}, ofPod, ofPod, ofContainer},
		{"network", v1.PodSpec{HostNetwork: true}, ofNode, ofPod, ofContainer},
		{"ipc", v1.PodSpec{HostIPC: true}, ofPod, ofNode, ofContainer},
		{"pid", v1.PodSpec{HostPID: true}, ofPod, ofPod, ofNode},
		{"shared pid", v1.PodSpec{ShareProcessNamespace: new(true)}, ofPod, ofPod, ofPod},
	} {
		got, err := namespaceOptions(&v1.Pod{Spec: test.spec}, nil)
		if err != nil || got.GetNetwork() != test.network || got.GetIpc() != test.ipc || got.GetPid() != test.pid {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
	}
}

// A pod with hostUsers: false never gets the users of the host, and another pod gets nothing else.
func TestUserNamespaces(t *testing.T) {
	own := &v1.Pod{Spec: v1.PodSpec{HostUsers: new(false)}}
	ids := []*runtimeapi.IDMapping{{HostId: 131072, Length: 65536}}
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	got, err := namespaceOptions(own, users)
	if err != nil || got.GetUsernsOptions() != users {
		t.Errorf("%v, %v", got, err)
	}
	for name, bad := range map[string]*runtimeapi.UserNamespace{
		"none": nil, "the host's": {Mode: runtimeapi.NamespaceMode_NODE, Uids: ids, Gids: ids},
		"no users": {Gids: ids}, "no groups": {Uids: ids},
	} {
		if got, err := namespaceOptions(own, bad); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, p := range []*v1.Pod{{}, {Spec: v1.PodSpec{HostUsers: new(true)}}} {
		got, err := namespaceOptions(p, users)
		of := got.GetUsernsOptions()
		if err != nil || of.GetMode() != runtimeapi.NamespaceMode_NODE || len(of.GetUids()) != 0 {
			t.Errorf("the host's users: %v, %v", got, err)
		}
	}
}

func TestSysctlsAndAnnotationsReachTheSandbox(t *testing.T) {
	p := secured(&v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net/ipv4/tcp_syncookies", Value: "1"},
		{Name: "kernel.msgmax", Value: "2"}}}, nil)
	p.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "1M", "kubernetes.io/egress-bandwidth": "2M"}
	config, err := Sandbox(p, SandboxInput{}, &Node{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"net.ipv4.tcp_syncookies": "1", "kernel.msgmax": "2"},
		config.GetLinux().GetSysctls()); d != "" {
		t.Errorf("sysctls: -want +got\n%s", d)
	}
	for key, value := range p.Annotations { // which network plugins read
		if config.GetAnnotations()[key] != value {
			t.Errorf("annotation %s = %q", key, config.GetAnnotations()[key])
		}
	}
}

// TestDefaultSysctls: a pod gets those that are its own alone, and its own word counts more.
func TestDefaultSysctls(t *testing.T) {
	defaults := map[string]string{
		"net/ipv4/tcp_syncookies": "0", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "20",
		"user.max_mnt_namespaces": "5", "kernel.domainname": "d",
	}
	for name, c := range map[string]struct {
		change func(*v1.PodSpec)
		want   map[string]string
	}{
		"of its own": {func(*v1.PodSpec) {}, map[string]string{
			"net.ipv4.tcp_syncookies": "0", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "20", "kernel.domainname": "d",
		}},
		"on the host's network": {func(s *v1.PodSpec) { s.HostNetwork = true }, map[string]string{
			"kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "20",
		}},
		"with the host's IPC": {func(s *v1.PodSpec) { s.HostIPC = true }, map[string]string{
			"net.ipv4.tcp_syncookies": "0", "kernel.domainname": "d",
		}},
		"that says otherwise": {func(s *v1.PodSpec) {
			s.HostIPC = true
			s.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.ipv4.tcp_syncookies", Value: "1"}}}
		}, map[string]string{"net.ipv4.tcp_syncookies": "1", "kernel.domainname": "d"}},
	} {
		p := plainPod()
		c.change(&p.Spec)
		config, err := Sandbox(p, SandboxInput{}, &Node{DefaultSysctls: defaults})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, config.GetLinux().GetSysctls()); d != "" {
			t.Errorf("a pod %s (-want +got):\n%s", name, d)
		}
	}
}
