package podgen

import (
	corev1 "k8s.io/api/core/v1"
)

// securityTraits concern what containers may do, and as whom they do it.
func securityTraits() []trait {
	return []trait{
		{name: "pod user", alone: "pod-user", apply: func(g *Generator, p *corev1.Pod) {
			s := pct(p)
			s.RunAsUser, s.RunAsGroup, s.FSGroup = new(int64(1000+g.rand.IntN(3))), new(int64(2000)), new(int64(3000))
			s.SupplementalGroups = []int64{4000, 4001}
			s.FSGroupChangePolicy = new(one(g, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch))
			s.SupplementalGroupsPolicy = new(one(g, corev1.SupplementalGroupsPolicyMerge,
				corev1.SupplementalGroupsPolicyStrict))
		}},
		{name: "container user", apply: func(g *Generator, p *corev1.Pod) {
			s := ctx(main(p))
			s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot = new(int64(1234)), new(int64(5678)), new(true)
		}},
		{name: "pod nonroot", alone: "pod-user", apply: func(g *Generator, p *corev1.Pod) {
			pct(p).RunAsNonRoot, pct(p).RunAsUser = new(true), new(int64(65534))
		}},
		{name: "capabilities", alone: "privileges", apply: func(g *Generator, p *corev1.Pod) {
			ctx(main(p)).Capabilities = &corev1.Capabilities{
				Add:  []corev1.Capability{one[corev1.Capability](g, "NET_ADMIN", "SYS_TIME", "SYS_PTRACE")},
				Drop: []corev1.Capability{one[corev1.Capability](g, "ALL", "CHOWN", "MKNOD")},
			}
		}},
		{name: "no escalation", alone: "privileges", apply: func(g *Generator, p *corev1.Pod) {
			ctx(main(p)).AllowPrivilegeEscalation = new(false)
		}},
		{name: "privileged", alone: "privileges", apply: func(g *Generator, p *corev1.Pod) {
			ctx(main(p)).Privileged = new(true)
		}},
		{name: "read-only root", apply: func(g *Generator,
			p *corev1.Pod) {
			ctx(main(p)).ReadOnlyRootFilesystem = new(true)
		}},
		{name: "pod seccomp", alone: "pod-seccomp", apply: func(g *Generator, p *corev1.Pod) {
			pct(p).SeccompProfile = &corev1.SeccompProfile{
				Type: one(g, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined),
			}
		}},
		{name: "container seccomp", alone: "seccomp", apply: func(g *Generator, p *corev1.Pod) {
			ctx(main(p)).SeccompProfile = &corev1.SeccompProfile{
				Type: one(g, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined),
			}
		}},
		{name: "pod's own seccomp", alone: "pod-seccomp", apply: func(g *Generator, p *corev1.Pod) {
			pct(p).SeccompProfile = &corev1.SeccompProfile{
				Type:             corev1.SeccompProfileTypeLocalhost,
				LocalhostProfile: new(g.opts.Seccomp),
			}
		}},
		{name: "container's own seccomp", alone: "seccomp", apply: func(g *Generator, p *corev1.Pod) {
			ctx(main(p)).SeccompProfile = &corev1.SeccompProfile{
				Type:             corev1.SeccompProfileTypeLocalhost,
				LocalhostProfile: new(g.opts.Seccomp),
			}
		}},
		{name: "no AppArmor", apply: func(g *Generator, p *corev1.Pod) {
			pct(p).AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
			ctx(main(p)).AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		}},
		{name: "procMount", apply: func(g *Generator,
			p *corev1.Pod) {
			ctx(main(p)).ProcMount = new(corev1.DefaultProcMount)
		}},
		{name: "sysctls", alone: "network", apply: func(g *Generator, p *corev1.Pod) {
			pct(p).Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"},
				{Name: "kernel.shm_rmid_forced", Value: "1"}}
		}},
		{name: "SELinux", apply: func(g *Generator, p *corev1.Pod) {
			pct(p).SELinuxOptions = &corev1.SELinuxOptions{
				User:  "system_u",
				Role:  "system_r",
				Type:  "container_t",
				Level: "s0:c123,c456",
			}
			pct(p).SELinuxChangePolicy = new(next(g, "SELinux", corev1.SELinuxChangePolicyRecursive,
				corev1.SELinuxChangePolicyMountOption))
		}},
		{name: "container SELinux", apply: func(g *Generator, p *corev1.Pod) {
			ctx(main(p)).SELinuxOptions = &corev1.SELinuxOptions{
				User:  "system_u",
				Role:  "system_r",
				Type:  "container_t",
				Level: "s0:c1,c2",
			}
		}},
		{name: "host users", alone: "users", apply: func(g *Generator, p *corev1.Pod) { p.Spec.HostUsers = new(true) }},
		// The API server refuses the namespaces of the host beside it.
		{name: "own users", alone: "users network pid", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.HostUsers = new(false)
		}},
	}
}
