package twins

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (d draft) placement(s *v1.PodSpec) {
	s.RestartPolicy = pick(d, []v1.RestartPolicy{"", v1.RestartPolicyAlways, v1.RestartPolicyNever,
		v1.RestartPolicyOnFailure}, "always")
	s.ActiveDeadlineSeconds = some(d, []int64{1, 100}, 0, -1, 1<<31)
	s.TerminationGracePeriodSeconds = some(d, []int64{0, 30, 5, -1, 1 << 40})
	s.PreemptionPolicy = some(d, []v1.PreemptionPolicy{v1.PreemptNever, v1.PreemptLowerPriority}, "", "Always")
	s.RuntimeClassName = some(d, []string{"kata"}, "", "A", "a b")
	if d.has() {
		s.PriorityClassName = pick(d, []string{"system-node-critical", "a"}, "A", "a b")
		s.Priority = some(d, []int32{1, 2_000_001_000, -1})
	}
	if d.has() {
		s.SchedulerName = pick(d, []string{"a"}, "A b")
	}
	if d.has() {
		s.NodeName = "elsewhere"
	}
	if d.Percent(1) {
		s.SchedulingGates = []v1.PodSchedulingGate{{Name: "a"}}
	}
	if d.has() {
		s.OS = &v1.PodOS{Name: pick(d, []v1.OSName{v1.Linux}, "", "plan9")}
	}
	if d.has() {
		s.NodeSelector = map[string]string{pick(d, []string{"a"}, "", "a b"): pick(d, []string{"a", ""}, "a b", "-")}
	}
	for range d.few() {
		s.ReadinessGates = append(s.ReadinessGates, v1.PodReadinessGate{
			ConditionType: pick(d, []v1.PodConditionType{"a", "example.com/a"}, "", "a b"),
		})
	}
	for range d.few() {
		s.Tolerations = append(s.Tolerations, v1.Toleration{
			Key: pick(d, []string{"a", "example.com/a"}, "", "a b"),
			Operator: pick(d, []v1.TolerationOperator{"", v1.TolerationOpEqual, v1.TolerationOpExists}, "In",
				v1.TolerationOpGt),
			Value: pick(d, []string{"", "", "1"}, "a b"),
			Effect: pick(d, []v1.TaintEffect{v1.TaintEffectNoExecute, v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule, "",
				v1.TaintEffectPreferNoSchedule}, "None"),
			TolerationSeconds: some(d, []int64{1, -1, 0}),
		})
		if d.Percent(20) { // all taints
			all := &s.Tolerations[len(s.Tolerations)-1]
			all.Key, all.Operator, all.Value = "", v1.TolerationOpExists, ""
		}
	}
	if d.Percent(5) {
		s.Overhead = v1.ResourceList{pick(d, []v1.ResourceName{"cpu", "memory"}, "a b", "gpu"): resource.MustParse(
			pick(d, []string{"1"}, "-1"))}
	}
	d.affinity(s)
	if d.Percent(5) {
		s.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "a",
			WhenUnsatisfiable: OneOf(d.Source, v1.DoNotSchedule, v1.ScheduleAnyway),
			LabelSelector:     d.selector(),
		}}
	}
}

// selector is right: what only the scheduler looks at is not checked on the node, and docs/pod-sources.md says so.
func (d draft) selector() *metav1.LabelSelector {
	if !d.has() {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
}

func (d draft) affinity(s *v1.PodSpec) {
	if !d.Percent(5) {
		return
	}
	a := &v1.Affinity{}
	if d.Percent(60) {
		a.NodeAffinity = &v1.NodeAffinity{}
		if d.Percent(50) {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: d.terms()}
		} else {
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.PreferredSchedulingTerm{{
				Weight: pick(d, []int32{1, 100}, 0, 101), Preference: d.term(),
			}}
		}
	}
	if d.Percent(40) {
		term := v1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: d.selector(),
			Namespaces: OneOf(d.Source, nil, []string{"a"})}
		a.PodAntiAffinity = &v1.PodAntiAffinity{}
		if d.Percent(50) {
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{term}
		} else {
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.WeightedPodAffinityTerm{{
				Weight: OneOf(d.Source, int32(1), 100), PodAffinityTerm: term,
			}}
		}
	}
	s.Affinity = a
}

func (d draft) terms() []v1.NodeSelectorTerm {
	if d.Percent(wrong) {
		return nil
	}
	return []v1.NodeSelectorTerm{d.term()}
}

func (d draft) term() (t v1.NodeSelectorTerm) {
	if d.Percent(90) {
		t.MatchExpressions = []v1.NodeSelectorRequirement{{
			Key: pick(d, []string{"zone"}, "", "a b"),
			Operator: pick(d, []v1.NodeSelectorOperator{v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn}, v1.NodeSelectorOpExists,
				v1.NodeSelectorOpGt, "", "Eq"),
			Values: pick(d, [][]string{{"a"}, {"a", "b"}}, nil, []string{"a b"}),
		}}
	}
	if d.has() {
		t.MatchFields = []v1.NodeSelectorRequirement{{
			Key: pick(d, []string{"metadata.name"}, "metadata.uid"), Operator: pick(d, []v1.NodeSelectorOperator{
				v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn}, v1.NodeSelectorOpExists),
			Values: pick(d, [][]string{{"node"}}, nil, []string{"a", "b"}, []string{"a b"}),
		}}
	}
	return t
}

func (d draft) network(s *v1.PodSpec) {
	s.HostNetwork, s.HostPID, s.HostIPC = d.has(), d.Percent(5), d.Percent(5)
	s.ShareProcessNamespace = some(d, []bool{true, false})
	s.HostUsers = some(d, []bool{true, false})
	s.EnableServiceLinks = some(d, []bool{true, false})
	s.SetHostnameAsFQDN = some(d, []bool{true, false})
	if d.has() {
		s.Hostname = pick(d, manifestNames, notNames...)
	}
	if d.has() {
		s.Subdomain = pick(d, manifestNames, notNames...)
	}
	if d.Percent(5) {
		not := slices.Concat(notNames, []string{strings.Repeat("a.", 33) + "a"})
		s.HostnameOverride = new(pick(d, slices.Concat(manifestNames, []string{"a.b"}), not...))
	}
	for range d.few() {
		s.HostAliases = append(s.HostAliases, v1.HostAlias{
			IP:        pick(d, []string{"10.0.0.1", "::1"}, "", "a", "10.0.0.01", "::ffff:10.0.0.1", "fe80::1%eth0"),
			Hostnames: []string{pick(d, []string{"a", "a.b"}, "", "A", "a_b")},
		})
	}
	s.DNSPolicy = pick(d, []v1.DNSPolicy{"", v1.DNSClusterFirst, v1.DNSDefault, v1.DNSClusterFirstWithHostNet},
		v1.DNSNone, "default")
	if s.DNSPolicy != v1.DNSNone && !d.has() {
		return
	}
	s.DNSConfig = &v1.PodDNSConfig{
		Nameservers: pick(d, [][]string{nil, {"10.0.0.1"}, {"::1", "10.0.0.1"}}, []string{"a"}, []string{"10.0.0.01"},
			[]string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"}, []string{"::ffff:10.0.0.1"}),
		Searches: pick(d, [][]string{nil, {"a.b"}, {"a.b."}, {"."}, {"_a.b"}}, []string{"A"}, []string{""}, []string{"a..b"},
			strings.Fields(strings.Repeat("a ", 33)), []string{strings.Repeat("a", 64)}),
	}
	for range d.few() {
		s.DNSConfig.Options = append(s.DNSConfig.Options, v1.PodDNSConfigOption{
			Name: pick(d, []string{"ndots"}, ""), Value: some(d, []string{"1"}),
		})
	}
}

func (d draft) podSecurity(s *v1.PodSpec) {
	if !d.has() {
		return
	}
	sc := &v1.PodSecurityContext{
		RunAsUser: some(d, []int64{0, 1000}, -1, 1<<31), RunAsGroup: some(d, []int64{0}, -1, 1<<31),
		RunAsNonRoot: some(d, []bool{true}), FSGroup: some(d, []int64{0, 1}, -1, 1<<31),
		FSGroupChangePolicy: some(d, []v1.PodFSGroupChangePolicy{v1.FSGroupChangeAlways, v1.FSGroupChangeOnRootMismatch},
			"", "Never"),
		SupplementalGroups: pick(d, [][]int64{nil, {1, 2}, {1, 1}}, []int64{-1}),
		SupplementalGroupsPolicy: some(d, []v1.SupplementalGroupsPolicy{v1.SupplementalGroupsPolicyMerge,
			v1.SupplementalGroupsPolicyStrict}, "", "None"),
		SELinuxChangePolicy: some(d, []v1.PodSELinuxChangePolicy{v1.SELinuxChangePolicyMountOption,
			v1.SELinuxChangePolicyRecursive}, "", "None"),
		SeccompProfile: d.seccomp(), AppArmorProfile: d.appArmor(),
	}
	for range d.few() {
		sc.Sysctls = append(sc.Sysctls, v1.Sysctl{
			Name: pick(d, []string{"net.a", "kernel/shm"}, "", "a b", "A", "net..a", strings.Repeat("a", 254)), Value: "1",
		})
	}
	if d.Percent(1) {
		sc.WindowsOptions = &v1.WindowsSecurityContextOptions{}
	}
	s.SecurityContext = sc
}

func (d draft) volumes(s *v1.PodSpec) {
	if !d.Percent(40) {
		return
	}
	for i := range OneOf(d.Source, 1, 2, 3) {
		v := v1.Volume{Name: fmt.Sprint("v", i)}
		if d.Percent(wrong) {
			v.Name = OneOf(d.Source, append(notNames, "v0")...)
		}
		d.volume(&v.VolumeSource)
		if d.Percent(1) {
			d.volume(&v.VolumeSource)
		}
		s.Volumes = append(s.Volumes, v)
	}
}

func (d draft) volume(v *v1.VolumeSource) {
	mode := func() *int32 { return some(d, []int32{0, 0o644, 0o777}, -1, 0o1000) }
	switch OneOf(d.Source, "none", "emptyDir", "hostPath", "downwardAPI", "projected", "nfs", "image") {
	case "emptyDir":
		v.EmptyDir = &v1.EmptyDirVolumeSource{Medium: pick(d, []v1.StorageMedium{"", v1.StorageMediumMemory,
			v1.StorageMediumHugePages, "HugePages-2Mi"}, "Disk")}
		if d.has() {
			v.EmptyDir.SizeLimit = new(resource.MustParse(pick(d, []string{"0", "1Gi", "1m"}, "-1")))
		}
	case "hostPath":
		v.HostPath = &v1.HostPathVolumeSource{
			Path: pick(d, []string{"/a", "a", "/a..b"}, "", "/..", "/a/../b"),
			Type: some(d, []v1.HostPathType{v1.HostPathUnset, v1.HostPathFile, v1.HostPathDirectoryOrCreate}, "Device"),
		}
	case "downwardAPI":
		v.DownwardAPI = &v1.DownwardAPIVolumeSource{Items: d.downward(mode), DefaultMode: mode()}
	case "projected":
		v.Projected = &v1.ProjectedVolumeSource{DefaultMode: mode()}
		for range OneOf(d.Source, 1, 2) {
			source := v1.VolumeProjection{}
			if !d.Percent(wrong) {
				source.DownwardAPI = &v1.DownwardAPIProjection{Items: d.downward(mode)}
			}
			if d.Percent(1) {
				source.ConfigMap = &v1.ConfigMapProjection{}
			}
			v.Projected.Sources = append(v.Projected.Sources, source)
		}
	case "nfs":
		v.NFS = &v1.NFSVolumeSource{
			Server: pick(d, []string{"s", "10.0.0.1"}, ""), Path: pick(d, []string{"/a"}, "", "a"),
		}
	case "image":
		v.Image = &v1.ImageVolumeSource{
			Reference:  pick(d, []string{"i", "i:1", "i@sha256:" + digest}, ""),
			PullPolicy: pick(d, []v1.PullPolicy{"", v1.PullAlways, v1.PullNever}, "always"),
		}
	}
}

func (d draft) downward(mode func() *int32) []v1.DownwardAPIVolumeFile {
	var items []v1.DownwardAPIVolumeFile
	for i := range OneOf(d.Source, 1, 0, 2) {
		item := v1.DownwardAPIVolumeFile{
			Path: pick(d, []string{fmt.Sprint("f", i), "a/b"}, "", "/a", "..", "..a", "a/../b"), Mode: mode(),
		}
		if d.Percent(60) != d.Percent(wrong) {
			item.FieldRef = d.fieldRef()
		}
		if item.FieldRef == nil != d.Percent(wrong) {
			item.ResourceFieldRef = d.resourceRef()
			item.ResourceFieldRef.ContainerName = pick(d, []string{"c0"}, "", "none")
		}
		items = append(items, item)
	}
	return items
}

// references draws what only the API could resolve.
func (d draft) references(s *v1.PodSpec) {
	if !d.Percent(8) {
		return
	}
	switch OneOf(d.Source, "account", "old account", "pull secret", "claim", "env", "from", "volume") {
	case "account":
		s.ServiceAccountName = pick(d, []string{"a"}, "A", "a b")
	case "old account":
		s.DeprecatedServiceAccount = "a"
	case "pull secret":
		s.ImagePullSecrets = []v1.LocalObjectReference{{Name: pick(d, []string{"a"}, "")}}
	case "claim":
		s.ResourceClaims = []v1.PodResourceClaim{{Name: "a", ResourceClaimName: new("a")}}
	case "env":
		if len(s.Containers) > 0 {
			s.Containers[0].Env = append(s.Containers[0].Env, v1.EnvVar{Name: "R", ValueFrom: &v1.EnvVarSource{
				ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "a"}, Key: "k"},
			}})
		}
	case "from":
		if len(s.Containers) > 0 {
			s.Containers[0].EnvFrom = []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{
				LocalObjectReference: v1.LocalObjectReference{Name: "a"},
			}}}
		}
	case "volume":
		v := v1.Volume{Name: "r"}
		switch OneOf(d.Source, "configMap", "secret", "claim", "csi") {
		case "configMap":
			v.ConfigMap = &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "a"}}
		case "secret":
			v.Secret = &v1.SecretVolumeSource{SecretName: "a"}
		case "claim":
			v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}
		case "csi":
			v.CSI = &v1.CSIVolumeSource{Driver: "a"}
		}
		s.Volumes = append(s.Volumes, v)
	}
}
