package criconfig

import (
	"fmt"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/node/util/sysctl"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Longest names of the kernel and of DNS, in characters.
const (
	maxHostname = 63
	maxFQDN     = 64
)

// SandboxInput is what a sandbox's config needs besides the pod and the node.
type SandboxInput struct {
	// Attempt counts the pod's sandboxes from 0.
	Attempt uint32
	// CgroupParent is the pod's cgroup, in the driver's spelling.
	CgroupParent string
	DNS          *runtimeapi.DNSConfig
	// UserNamespace of a pod with hostUsers: false; nil for others.
	UserNamespace *runtimeapi.UserNamespace
}

// Sandbox returns the config of a pod's sandbox. It is pure.
func Sandbox(p *v1.Pod, in SandboxInput, n *Node) (*runtimeapi.PodSandboxConfig, error) {
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      p.Name,
			Namespace: p.Namespace,
			Uid:       string(p.UID),
			Attempt:   in.Attempt,
		},
		Labels:       podLabels(p),
		Annotations:  p.Annotations,
		DnsConfig:    in.DNS,
		LogDirectory: PodLogDir(n.PodLogsDir, p.Namespace, p.Name, p.UID),
		PortMappings: portMappings(p),
	}
	if !p.Spec.HostNetwork {
		hostname, err := kernelHostname(p, n.ClusterDomain)
		if err != nil {
			return nil, err
		}
		config.Hostname = hostname
	}
	security, err := sandboxSecurity(p, in.UserNamespace)
	if err != nil {
		return nil, err
	}
	config.Linux = &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent: in.CgroupParent, SecurityContext: security, Sysctls: defaultSysctls(p, n.DefaultSysctls),
		Resources: sandboxResources(p, n), Overhead: overhead(p, n),
	}
	if p.Spec.SecurityContext != nil {
		for _, s := range p.Spec.SecurityContext.Sysctls {
			config.Linux.Sysctls[sysctl.NormalizeName(s.Name)] = s.Value // runtimes know the dots alone
		}
	}
	return config, nil
}

// defaultSysctls are those of the node's defaults that belong to a namespace of the pod's own.
// Source: KEP-5474, applyPodSysctls of the kubelet.
func defaultSysctls(p *v1.Pod, defaults map[string]string) map[string]string {
	own := map[string]string{}
	for name, value := range defaults {
		namespace, _, _ := sysctl.GetNamespace(name)
		shared := p.Spec.HostNetwork // the kernel's domain name too
		switch namespace {
		case sysctl.IPCNamespace:
			shared = p.Spec.HostIPC
		case sysctl.UserNamespace:
			shared = !podutil.OwnUsers(&p.Spec)
		}
		if !shared {
			own[sysctl.NormalizeName(name)] = value
		}
	}
	return own
}

// sandboxResources are hints for runtimes that give the pod as a whole a machine of its own.
func sandboxResources(p *v1.Pod, n *Node) *runtimeapi.LinuxContainerResources {
	options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := resourcehelper.PodRequests(p, options), resourcehelper.PodLimits(p, options)
	request := limits.Cpu()
	if q, ok := requests[v1.ResourceCPU]; ok {
		request = &q
	}
	return linuxResources(n, request, limits.Cpu(), limits.Memory())
}

func overhead(p *v1.Pod, n *Node) *runtimeapi.LinuxContainerResources {
	if p.Spec.Overhead == nil {
		return &runtimeapi.LinuxContainerResources{}
	}
	cpu := p.Spec.Overhead.Cpu()
	return linuxResources(n, cpu, cpu, p.Spec.Overhead.Memory())
}

// portMappings are all ports of the pod's containers: which of them the host forwards is
// the network plugin's to read from HostPort.
func portMappings(p *v1.Pod) []*runtimeapi.PortMapping {
	var mappings []*runtimeapi.PortMapping
	for i := range p.Spec.Containers {
		seen := map[string]bool{}
		for _, port := range p.Spec.Containers[i].Ports {
			name := port.Name
			if name == "" {
				// The same port may be there once for each family of addresses.
				family := "any"
				if port.HostIP != "" {
					if family = "v4"; strings.Contains(port.HostIP, ":") {
						family = "v6"
					}
				}
				name = fmt.Sprintf("%s-%s-%s:%d:%d", family, port.Protocol, port.HostIP, port.ContainerPort,
					port.HostPort)
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			protocol := runtimeapi.Protocol_TCP
			switch port.Protocol {
			case v1.ProtocolUDP:
				protocol = runtimeapi.Protocol_UDP
			case v1.ProtocolSCTP:
				protocol = runtimeapi.Protocol_SCTP
			}
			mappings = append(mappings, &runtimeapi.PortMapping{
				Protocol: protocol, ContainerPort: port.ContainerPort, HostPort: port.HostPort, HostIp: port.HostIP,
			})
		}
	}
	return mappings
}

// Hostname returns a pod's short host name and its domain, "" when it has none.
func Hostname(p *v1.Pod, clusterDomain string) (hostname, domain string, err error) {
	if override := p.Spec.HostnameOverride; override != nil {
		if errs := validation.IsDNS1123Subdomain(*override); len(errs) != 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *override,
				strings.Join(errs, ";"))
		}
		hostname, err = cutHostname(p, *override)
		return hostname, "", err
	}
	hostname = p.Name
	if p.Spec.Hostname != "" {
		if errs := validation.IsDNS1123Label(p.Spec.Hostname); len(errs) != 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", p.Spec.Hostname,
				strings.Join(errs, ";"))
		}
		hostname = p.Spec.Hostname
	}
	if hostname, err = cutHostname(p, hostname); err != nil {
		return "", "", err
	}
	if p.Spec.Subdomain != "" {
		if errs := validation.IsDNS1123Label(p.Spec.Subdomain); len(errs) != 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", p.Spec.Subdomain,
				strings.Join(errs, ";"))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", p.Spec.Subdomain, p.Namespace, clusterDomain)
	}
	return hostname, domain, nil
}

// cutHostname cuts a pod's name, which may be longer, to what a host name may have.
func cutHostname(p *v1.Pod, hostname string) (string, error) {
	if len(hostname) <= maxHostname {
		return hostname, nil
	}
	cut := strings.TrimRight(hostname[:maxHostname], "-.")
	if cut == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", p.Name, hostname)
	}
	return cut, nil
}

// kernelHostname is what the pod's processes see as their host name.
func kernelHostname(p *v1.Pod, clusterDomain string) (string, error) {
	hostname, domain, err := Hostname(p, clusterDomain)
	if err != nil {
		return "", err
	}
	if domain == "" || p.Spec.SetHostnameAsFQDN == nil || !*p.Spec.SetHostnameAsFQDN {
		return hostname, nil
	}
	fqdn := hostname + "." + domain
	if len(fqdn) > maxFQDN {
		return "",
			fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is "+
				"the max, %d characters requested)", fqdn, maxFQDN, len(fqdn))
	}
	return fqdn, nil
}

// NetworkMode returns which network the pod uses, for comparing with a sandbox that runs.
func NetworkMode(p *v1.Pod) runtimeapi.NamespaceMode {
	if p.Spec.HostNetwork {
		return runtimeapi.NamespaceMode_NODE
	}
	return runtimeapi.NamespaceMode_POD
}
