package twins

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// draft draws the parts of a manifest. Few of its choices are wrong, so that most manifests are taken.
type draft struct{ *Source }

// rare says how often, in percent, a part is there, and wrong how often a choice is.
const rare, wrong = 12, 3

func (d draft) has() bool { return d.Percent(rare) }

// pick picks what is right, and now and then what is not.
func pick[T any](d draft, right []T, not ...T) T {
	if len(not) > 0 && d.Percent(wrong) {
		return OneOf(d.Source, not...)
	}
	return OneOf(d.Source, right...)
}

// some is nil, or what pick picks.
func some[T any](d draft, right []T, not ...T) *T {
	if !d.has() {
		return nil
	}
	return new(pick(d, right, not...))
}

func drawManifest(s *Source) manifestFile {
	d := draft{s}
	p := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	d.metadata(&p.ObjectMeta)
	d.volumes(&p.Spec)
	for i := range OneOf(s, 1, 1, 1, 2) {
		p.Spec.Containers = append(p.Spec.Containers, d.container(fmt.Sprint("c", i), &p.Spec))
	}
	if d.has() {
		for i := range OneOf(s, 1, 2) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, d.container(fmt.Sprint("i", i), &p.Spec))
		}
	}
	if s.Percent(1) {
		p.Spec.Containers = nil
	}
	if s.Percent(1) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e", Image: "i"},
		}}
	}
	d.placement(&p.Spec)
	d.network(&p.Spec)
	d.podSecurity(&p.Spec)
	if d.has() {
		r := d.resources()
		p.Spec.Resources = &r
	}
	d.references(&p.Spec)
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return manifestFile{Text: text, File: !s.Percent(20)}
}

var manifestNames = []string{"a", "web-1", "0"}

var notNames = []string{
	"", "A", "a_b", "-a", "a.b", "a-very-long-name-of-more-than-sixty-three-characters-which-is-too-long-a",
}

func (d draft) metadata(m *metav1.ObjectMeta) {
	m.Name = pick(d, []string{"a", "web-1", "a.b"}, "", "A", "a_b", "-a")
	if d.has() {
		m.GenerateName = "a-"
	}
	if d.has() {
		m.Namespace = pick(d, []string{"default", "kube-system"}, "A", "a.b", "-")
	}
	if d.has() {
		m.UID = types.UID(pick(d, []string{"u1", "0f5c1d9e-0000-4000-8000-000000000000"}))
	}
	if d.has() {
		m.Labels = map[string]string{
			pick(d, []string{"app", "example.com/a"}, "", "a b", "/a"): pick(d, []string{"a", "", "1"}, "a b", "-", "a/b"),
		}
	}
	if d.has() {
		m.Annotations = map[string]string{
			pick(d, []string{"app", "example.com/A", "Example.com/a"}, "", "a b", "a/b/c"): pick(d, []string{"a b", ""}),
		}
	}
	if d.Percent(3) {
		m.Annotations = map[string]string{OneOf(d.Source, "kubernetes.io/config.mirror", "kubernetes.io/config.source",
			"kubernetes.io/config.hash", "kubernetes.io/config.seen", "seccomp.security.alpha.kubernetes.io/pod",
			"container.apparmor.security.beta.kubernetes.io/c0"): OneOf(d.Source, "a", "runtime/default", "unconfined",
			"localhost/a")}
	}
	if d.Percent(3) {
		m.Finalizers = []string{pick(d, []string{"example.com/a"}, "a", "")}
	}
}

func (d draft) container(name string, spec *v1.PodSpec) v1.Container {
	c := v1.Container{Name: name}
	if d.Percent(wrong) {
		c.Name = OneOf(d.Source, append(notNames, "c0")...)
	}
	c.Image = pick(d, []string{"i", "i:1", "i:latest", "registry.example:5000/a/b", "i@sha256:" + digest,
		"i:1@sha256:" + digest, "UPPER:1"}, "", " i", "i ")
	c.ImagePullPolicy = pick(d, []v1.PullPolicy{"", v1.PullAlways, v1.PullNever, v1.PullIfNotPresent}, "always")
	if d.has() {
		c.TerminationMessagePath = "/tmp/end"
		c.TerminationMessagePolicy = pick(d, []v1.TerminationMessagePolicy{"", v1.TerminationMessageReadFile,
			v1.TerminationMessageFallbackToLogsOnError}, "Logs")
	}
	if d.has() {
		c.Command, c.Args, c.WorkingDir = []string{"a"}, []string{"", "$(X)"}, "/"
	}
	for range d.few() {
		c.Ports = append(c.Ports, d.port())
	}
	for range d.few() {
		c.Env = append(c.Env, d.variable(spec))
	}
	if d.has() {
		c.Resources = d.resources()
	}
	for range d.few() {
		c.VolumeMounts = append(c.VolumeMounts, d.mount(spec))
	}
	if d.has() {
		c.RestartPolicy = new(pick(d, []v1.ContainerRestartPolicy{v1.ContainerRestartPolicyAlways,
			v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure}, "", "Sometimes"))
		for range d.few() {
			c.RestartPolicyRules = append(c.RestartPolicyRules, d.rule())
		}
	}
	d.reactions(&c)
	if d.has() {
		c.SecurityContext = d.security()
	}
	if d.Percent(1) {
		c.VolumeDevices = []v1.VolumeDevice{{Name: "v0", DevicePath: "/dev/x"}}
	}
	c.Stdin, c.StdinOnce, c.TTY = d.has(), d.has(), d.has()
	return c
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func (d draft) few() int {
	if !d.has() {
		return 0
	}
	return OneOf(d.Source, 1, 2)
}

func (d draft) rule() v1.ContainerRestartRule {
	r := v1.ContainerRestartRule{Action: pick(d, []v1.ContainerRestartRuleAction{v1.ContainerRestartRuleActionRestart,
		v1.ContainerRestartRuleActionRestartAllContainers}, "", "Stop")}
	if !d.Percent(wrong) {
		r.ExitCodes = &v1.ContainerRestartRuleOnExitCodes{
			Operator: pick(d, []v1.ContainerRestartRuleOnExitCodesOperator{v1.ContainerRestartRuleOnExitCodesOpIn,
				v1.ContainerRestartRuleOnExitCodesOpNotIn}, "", "Eq"),
			Values: pick(d, [][]int32{{1}, {1, 2}, {0}}, nil, []int32{1, 1}, []int32{-1}),
		}
	}
	return r
}

func (d draft) port() v1.ContainerPort {
	return v1.ContainerPort{
		Name:          pick(d, []string{"", "http", "a-1"}, "HTTP", "1", "a-very-long-port-name", "a--b"),
		ContainerPort: pick(d, []int32{80, 443, 1, 65535}, 0, -1, 65536),
		HostPort:      pick(d, []int32{0, 0, 0, 80, 443}, -1, 65536),
		Protocol:      pick(d, []v1.Protocol{"", v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}, "tcp"),
		HostIP:        pick(d, []string{"", "", "10.0.0.1", "::1"}, "a", "10.0.0.01"),
	}
}

func (d draft) variable(spec *v1.PodSpec) v1.EnvVar {
	e := v1.EnvVar{Name: pick(d, []string{"A", "a.b", "1", "a b"}, "", "a=b", "é")}
	switch OneOf(d.Source, "value", "field", "resource", "file", "none", "empty", "both") {
	case "value":
		e.Value = "v"
	case "field":
		e.ValueFrom = &v1.EnvVarSource{FieldRef: d.fieldRef()}
	case "resource":
		e.ValueFrom = &v1.EnvVarSource{ResourceFieldRef: d.resourceRef()}
	case "file":
		if len(spec.Volumes) > 0 && d.Percent(50) {
			e.ValueFrom = &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{
				VolumeName: pick(d, []string{"v0"}, "", "none"), Path: pick(d, []string{"a", "a/b"}, "", "/a", "../a"),
				Key: pick(d, []string{"A"}, "", "a=b"), Optional: some(d, []bool{true, false}),
			}}
		}
	case "empty":
		if d.Percent(wrong) {
			e.ValueFrom = &v1.EnvVarSource{}
		}
	case "both":
		if d.Percent(wrong) {
			e.Value, e.ValueFrom = OneOf(d.Source, "", "v"), &v1.EnvVarSource{FieldRef: d.fieldRef(),
				ResourceFieldRef: d.resourceRef()}
		}
	}
	return e
}

func (d draft) fieldRef() *v1.ObjectFieldSelector {
	return &v1.ObjectFieldSelector{
		APIVersion: pick(d, []string{"", "v1"}, "v2"),
		FieldPath: pick(d, []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['app']",
			"metadata.annotations['a/B']"}, "spec.nodeName", "status.podIP", "status.hostIPs", "metadata.labels", "",
			"metadata.labels['a b']", "spec.serviceAccountName", "metadata.annotations", "status.phase",
			"metadata.name['a']", "metadata.labels['']", "metadata.labels[app]", "spec.restartPolicy", "metadata"),
	}
}

func (d draft) resourceRef() *v1.ResourceFieldSelector {
	r := &v1.ResourceFieldSelector{
		ContainerName: pick(d, []string{"", "c0"}, "none", "A"),
		Resource: pick(d, []string{"limits.cpu", "requests.memory", "limits.ephemeral-storage", "requests.hugepages-2Mi"},
			"", "cpu", "limits.example.com/a", "limits", "limits.", "limits.hugepages-", "status.cpu"),
	}
	if d.has() {
		r.Divisor = resource.MustParse(pick(d, []string{"0", "1", "1Mi", "1m", "1k"}, "2", "1n", "10"))
	}
	return r
}

func (d draft) resources() v1.ResourceRequirements {
	var r v1.ResourceRequirements
	list := func() v1.ResourceList {
		if d.Percent(30) {
			return nil
		}
		list := v1.ResourceList{}
		for _, name := range []v1.ResourceName{"cpu", "memory", "ephemeral-storage"} {
			if d.Percent(30) {
				list[name] = resource.MustParse(pick(d, []string{"1", "2", "100m", "1Gi", "0", "1.5", "1e3"}, "-1", "1n"))
			}
		}
		if d.Percent(5) {
			name := OneOf(d.Source, v1.ResourceName("hugepages-2Mi"), "example.com/gpu", "hugepages-", "gpu", "a b",
				"kubernetes.io/x", "requests.cpu", "storage", "pods", "requests.example.com/a", "attachable-volumes-x",
				"hugepages-3x")
			list[name] = resource.MustParse(pick(d, []string{"2Mi", "4Mi"}, "1", "1500m", "0"))
		}
		return list
	}
	r.Limits, r.Requests = list(), list()
	if d.Percent(50) {
		r.Requests = nil
	}
	if d.Percent(1) {
		r.Claims = []v1.ResourceClaim{{Name: "a"}}
	}
	return r
}

func (d draft) mount(spec *v1.PodSpec) v1.VolumeMount {
	m := v1.VolumeMount{
		Name: "v0", MountPath: pick(d, []string{"/a", "/b", "c"}, "", "/a:b", "/../a", "C:"), ReadOnly: d.Percent(50),
		SubPath:     pick(d, []string{"", "", "", "a", "a/b"}, "/a", "..", "a/../b", "..a"),
		SubPathExpr: pick(d, []string{"", "", "", "", "$(A)"}, "/$(A)", "../$(A)"),
	}
	if n := len(spec.Volumes); n > 0 {
		m.Name = spec.Volumes[d.Intn(n)].Name
	} else if !d.Percent(wrong) {
		spec.Volumes = append(spec.Volumes, v1.Volume{Name: "v0"})
	}
	m.MountPropagation = some(d, []v1.MountPropagationMode{v1.MountPropagationNone, v1.MountPropagationHostToContainer,
		v1.MountPropagationBidirectional}, "", "Both")
	m.RecursiveReadOnly = some(d, []v1.RecursiveReadOnlyMode{v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyEnabled,
		v1.RecursiveReadOnlyIfPossible}, "", "On")
	return m
}

func (d draft) reactions(c *v1.Container) {
	for _, to := range []**v1.Probe{&c.LivenessProbe, &c.ReadinessProbe, &c.StartupProbe} {
		if d.has() {
			*to = d.probe()
		}
	}
	if !d.has() {
		return
	}
	c.Lifecycle = &v1.Lifecycle{StopSignal: some(d, []v1.Signal{v1.SIGTERM, v1.SIGRTMINPLUS1, v1.SIGCLD}, "", "SIGNONE",
		"TERM", "SIGRTMIN+16", "SIGRTMAX-0")}
	for _, to := range []**v1.LifecycleHandler{&c.Lifecycle.PostStart, &c.Lifecycle.PreStop} {
		if !d.Percent(50) {
			continue
		}
		var h v1.LifecycleHandler
		d.handler(&h.Exec, &h.HTTPGet, &h.TCPSocket)
		if h.Exec == nil && h.HTTPGet == nil && d.Percent(70) || d.Percent(wrong) {
			h.Sleep = &v1.SleepAction{Seconds: pick(d, []int64{1, 5, 30}, 0, -1, 31)}
		}
		*to = &h
	}
}

func (d draft) probe() *v1.Probe {
	p := &v1.Probe{}
	d.handler(&p.Exec, &p.HTTPGet, &p.TCPSocket)
	if p.Exec == nil && p.HTTPGet == nil && p.TCPSocket == nil || d.Percent(1) {
		p.GRPC = &v1.GRPCAction{Port: pick(d, []int32{80}, 0, -1, 65536), Service: some(d, []string{"", "a"})}
		if d.Percent(wrong) {
			p.GRPC = nil
		}
	}
	for _, to := range []*int32{&p.InitialDelaySeconds, &p.TimeoutSeconds, &p.PeriodSeconds, &p.FailureThreshold} {
		*to = pick(d, []int32{0, 0, 1, 10}, -1)
	}
	p.SuccessThreshold = pick(d, []int32{0, 1}, 2, -1)
	if d.Percent(wrong) {
		p.TerminationGracePeriodSeconds = new(OneOf(d.Source, int64(1), 30, 0, -1))
	}
	return p
}

// handler draws one of these, or none.
func (d draft) handler(exec **v1.ExecAction, get **v1.HTTPGetAction, tcp **v1.TCPSocketAction) {
	port := func() intstr.IntOrString {
		return pick(d, []intstr.IntOrString{intstr.FromInt32(80), intstr.FromString("http")}, intstr.FromInt32(0),
			intstr.FromInt32(65536), intstr.FromString("HTTP_1"), intstr.FromString(""), intstr.FromString("80"))
	}
	what := OneOf(d.Source, "exec", "http", "tcp", "none")
	if what == "exec" || d.Percent(1) {
		*exec = &v1.ExecAction{Command: pick(d, [][]string{{"a"}}, nil, []string{""})}
	}
	if what == "http" || d.Percent(1) {
		*get = &v1.HTTPGetAction{
			Path: OneOf(d.Source, "", "/", "a b"), Port: port(), Host: pick(d, []string{"", "h", "10.0.0.1"}, "a b"),
			Scheme: pick(d, []v1.URIScheme{"", v1.URISchemeHTTP, v1.URISchemeHTTPS}, "ftp"),
		}
		for range d.few() {
			(*get).HTTPHeaders = append((*get).HTTPHeaders, v1.HTTPHeader{
				Name: pick(d, []string{"Host", "x-a"}, "", "a b", "a:"), Value: "v",
			})
		}
	}
	if what == "tcp" || d.Percent(1) {
		*tcp = &v1.TCPSocketAction{Port: port(), Host: OneOf(d.Source, "", "h")}
	}
}

func (d draft) security() *v1.SecurityContext {
	sc := &v1.SecurityContext{
		Privileged: some(d, []bool{true, false}), RunAsUser: some(d, []int64{0, 1000}, -1, 1<<31),
		RunAsGroup: some(d, []int64{0, 1000}, -1, 1<<31), RunAsNonRoot: some(d, []bool{true, false}),
		ReadOnlyRootFilesystem: some(d, []bool{true, false}), AllowPrivilegeEscalation: some(d, []bool{true, false}),
		ProcMount:      some(d, []v1.ProcMountType{v1.DefaultProcMount}, v1.UnmaskedProcMount, "", "None"),
		SeccompProfile: d.seccomp(), AppArmorProfile: d.appArmor(),
	}
	if d.has() {
		sc.Capabilities = &v1.Capabilities{
			Add: pick(d, [][]v1.Capability{{"NET_ADMIN"}, {"ALL"}}, []v1.Capability{"CAP_SYS_ADMIN"},
				[]v1.Capability{"SYS_ADMIN"}, []v1.Capability{""}),
			Drop: pick(d, [][]v1.Capability{{"ALL"}, nil}),
		}
	}
	if d.has() {
		sc.SELinuxOptions = &v1.SELinuxOptions{Level: "s0"}
	}
	if d.Percent(1) {
		sc.WindowsOptions = &v1.WindowsSecurityContextOptions{}
	}
	return sc
}

func (d draft) seccomp() *v1.SeccompProfile {
	if !d.has() {
		return nil
	}
	p := &v1.SeccompProfile{Type: pick(d, []v1.SeccompProfileType{v1.SeccompProfileTypeRuntimeDefault,
		v1.SeccompProfileTypeUnconfined, v1.SeccompProfileTypeLocalhost}, "", "runtime/default")}
	if p.Type == v1.SeccompProfileTypeLocalhost != d.Percent(wrong) {
		p.LocalhostProfile = new(pick(d, []string{"a", "a/b.json"}, "", "/a", "../a"))
	}
	return p
}

func (d draft) appArmor() *v1.AppArmorProfile {
	if !d.has() {
		return nil
	}
	p := &v1.AppArmorProfile{Type: pick(d, []v1.AppArmorProfileType{v1.AppArmorProfileTypeRuntimeDefault,
		v1.AppArmorProfileTypeUnconfined, v1.AppArmorProfileTypeLocalhost}, "", "runtime/default")}
	if p.Type == v1.AppArmorProfileTypeLocalhost != d.Percent(wrong) {
		p.LocalhostProfile = new(pick(d, []string{"a", "a/b"}, "", " ", "a b", " a", "/a"))
	}
	return p
}
