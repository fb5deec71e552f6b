package podgen

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podTraits concern the pod as a whole: its network, names, namespaces and what others read of it.
func podTraits() []trait {
	return []trait{
		{name: "host network", alone: "network", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.HostNetwork = true
			p.Spec.DNSPolicy = one(g, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet)
		}},
		{name: "host PID", alone: "pid", apply: func(g *Generator, p *corev1.Pod) { p.Spec.HostPID = true }},
		{name: "shared PID", alone: "pid",
			apply: func(g *Generator, p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }},
		{name: "host IPC", alone: "network", apply: func(g *Generator, p *corev1.Pod) { p.Spec.HostIPC = true }},
		{name: "host name", alone: "name", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain = "renamed", one(g, "", "podgen-web")
		}},
		{name: "FQDN", alone: "name", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "renamed", "podgen-web", new(true)
		}},
		{name: "other host name", alone: "name network", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.HostnameOverride = new("renamed.example")
		}},
		{name: "aliases", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.9.8.7", Hostnames: []string{"seven", "sieben"}},
				{IP: "10.9.8.6", Hostnames: []string{"six"}}}
		}},
		{name: "DNS none", alone: "dns", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.DNSPolicy = corev1.DNSNone
			p.Spec.DNSConfig = &corev1.PodDNSConfig{
				Nameservers: []string{"10.1.1.1"}, Searches: []string{"one.example", "two.example"},
				Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("2")}, {Name: "edns0"}},
			}
		}},
		{name: "DNS default", alone: "dns", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.DNSPolicy = corev1.DNSDefault
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{"more.example"}}
		}},
		{name: "no service links", apply: func(g *Generator, p *corev1.Pod) { p.Spec.EnableServiceLinks = new(false) }},
		{name: "account", apply: func(g *Generator, p *corev1.Pod) { p.Spec.ServiceAccountName = account }},
		{name: "no token", apply: func(g *Generator, p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(false) }},
		{name: "pull secret", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: pullSecret}}
		}},
		{name: "always pull", apply: func(g *Generator, p *corev1.Pod) { main(p).ImagePullPolicy = corev1.PullAlways }},
		{name: "never pull", apply: func(g *Generator, p *corev1.Pod) { main(p).ImagePullPolicy = corev1.PullNever }},
		{name: "priority", apply: func(g *Generator, p *corev1.Pod) { p.Spec.PriorityClassName = priority }},
		{name: "scheduling", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
			p.Spec.Tolerations = []corev1.Toleration{{
				Key:      "some",
				Operator: corev1.TolerationOpExists,
				Effect:   corev1.TaintEffectNoExecute,
			}}
			p.Spec.Affinity = &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{
							Key:      "kubernetes.io/arch",
							Operator: corev1.NodeSelectorOpExists,
						}},
					}},
				}},
			}
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.ScheduleAnyway,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "none"}},
			}}
		}},
		{name: "readiness gate", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "podgen.example/ready"}}
		}},
		{name: "deadline", apply: func(g *Generator, p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(36000)) }},
		{name: "os", apply: func(g *Generator, p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Linux} }},
		{name: "runtime class", apply: func(g *Generator, p *corev1.Pod) { p.Spec.RuntimeClassName = new(runtimeClass) }},
	}
}
