package dns

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Limits of resolvers and of the API (pkg/apis/core/validation).
const (
	maxServers     = 3
	maxSearches    = 32
	maxSearchChars = 2048

	// clusterSearches is how many domains ClusterFirst puts before the node's own.
	clusterSearches = 3
)

// Options are the node's DNS settings.
type Options struct {
	// NodeIPs are the node's own addresses, primary first; they choose which loopback
	// addresses stand for "the server on this machine" when there is no resolv.conf.
	NodeIPs []netip.Addr
	// ClusterDNS and ClusterDomain are the fields of that name.
	ClusterDNS    []netip.Addr
	ClusterDomain string
	// ResolvConf is the field of that name; "" gives pods no servers but the machine's own.
	ResolvConf string
	// Warn sends a Warning event about a pod, WarnNode one about the node. nil: none is sent.
	Warn     func(p *v1.Pod, reason, message string)
	WarnNode func(reason, message string)
	Log      *slog.Logger
}

// Configurer forms the DNS settings of pods. It reads resolv.conf again for each pod.
type Configurer struct {
	o Options
}

// New returns a Configurer.
func New(o Options) *Configurer {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Warn == nil {
		o.Warn = func(*v1.Pod, string, string) {}
	}
	if o.WarnNode == nil {
		o.WarnNode = func(string, string) {}
	}
	return &Configurer{o: o}
}

// PodDNS returns the resolver configuration of a pod. An error is resolv.conf's.
func (c *Configurer) PodDNS(p *v1.Pod) (*runtimeapi.DNSConfig, error) {
	host, err := readResolvConf(c.o.ResolvConf)
	if err != nil {
		return nil, err
	}
	dns := &runtimeapi.DNSConfig{Servers: host.servers, Searches: host.searches, Options: host.options}
	switch c.policy(p) {
	case v1.DNSNone:
		dns = &runtimeapi.DNSConfig{}
	case v1.DNSClusterFirst:
		dns.Servers = []string{}
		for _, ip := range c.o.ClusterDNS {
			dns.Servers = append(dns.Servers, ip.String())
		}
		if domain := c.o.ClusterDomain; domain != "" {
			dns.Searches = unique(append([]string{p.Namespace + ".svc." + domain, "svc." + domain, domain},
				dns.Searches...))
		}
		// The node's own options are not the cluster's.
		dns.Options = []string{"ndots:5"}
	default:
		if c.o.ResolvConf == "" {
			dns.Servers = c.loopbacks()
			dns.Searches = []string{"."}
		}
	}
	if add := p.Spec.DNSConfig; add != nil {
		dns.Servers = unique(append(dns.Servers, add.Nameservers...))
		dns.Searches = unique(append(dns.Searches, add.Searches...))
		for i, o := range dns.Options {
			if name, value, _ := strings.Cut(o, ":"); value == "" {
				dns.Options[i] = name
			}
		}
		for _, o := range add.Options {
			text := o.Name
			if o.Value != nil && *o.Value != "" {
				text += ":" + *o.Value
			}
			dns.Options = setOption(dns.Options, text)
		}
	}
	dns.Servers = c.fitServers(p, dns.Servers)
	dns.Searches = c.fitSearches(p, dns.Searches)
	return dns, nil
}

// policy is the policy in effect: ClusterFirst (of both spellings), Default or None.
func (c *Configurer) policy(p *v1.Pod) v1.DNSPolicy {
	policy := p.Spec.DNSPolicy
	switch {
	case policy == v1.DNSNone, policy == v1.DNSDefault:
		return policy
	case policy == v1.DNSClusterFirst && p.Spec.HostNetwork:
		return v1.DNSDefault
	}
	if len(c.o.ClusterDNS) > 0 {
		return v1.DNSClusterFirst
	}
	const message = `kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`
	c.o.WarnNode("MissingClusterDNS", message)
	c.o.Warn(p, "MissingClusterDNS", fmt.Sprintf("pod: %q. %s", podText(p), message))
	return v1.DNSDefault
}

// loopbacks are the servers when resolvConf is "": the resolver of the machine itself, of
// the families that the node has.
func (c *Configurer) loopbacks() []string {
	var servers []string
	for _, ip := range c.o.NodeIPs {
		if ip.Is6() && !ip.Is4In6() {
			servers = append(servers, "::1")
		} else {
			servers = append(servers, "127.0.0.1")
		}
	}
	if len(servers) == 0 {
		return []string{"127.0.0.1"}
	}
	return servers
}

func (c *Configurer) fitServers(p *v1.Pod, servers []string) []string {
	if len(servers) <= maxServers {
		return servers
	}
	servers = servers[:maxServers]
	c.o.Warn(p,
		"DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied "+
			"nameserver line is: "+strings.Join(servers, " "))
	return servers
}

func (c *Configurer) fitSearches(p *v1.Pod, searches []string) []string {
	all := len(searches)
	fit := make([]string, 0, min(all, maxSearches))
	length := -1 // the first domain has no blank before it
	for _, domain := range searches[:min(all, maxSearches)] {
		if len(domain) > validation.DNS1123SubdomainMaxLength {
			continue // glibc aborts on a longer one
		}
		if length += 1 + len(domain); length > maxSearchChars {
			break
		}
		fit = append(fit, domain)
	}
	if len(fit) < all {
		c.o.Warn(p,
			"DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied "+
				"search line is: "+strings.Join(fit, " "))
	}
	return fit
}

// Check reports whether the node's own resolv.conf leaves room for what pods get besides. The
// kubelet says so in the event CheckLimitsForResolvConf of the node; Check sends it and
// returns the same as an error.
func (c *Configurer) Check() error {
	err := c.check()
	if err != nil {
		c.o.Log.Warn("resolv.conf leaves no room for the search domains of pods", logkey.Err, err)
		c.o.WarnNode("CheckLimitsForResolvConf", err.Error())
	}
	return err
}

func (c *Configurer) check() error {
	conf, err := readResolvConf(c.o.ResolvConf)
	if err != nil {
		return err
	}
	room := maxSearches
	if c.o.ClusterDomain != "" {
		room -= clusterSearches
	}
	if len(conf.searches) > room {
		//nolint:staticcheck // the kubelet's event text
		return fmt.Errorf("Resolv.conf file '%s' contains search line consisting of more than %d domains!",
			c.o.ResolvConf, room)
	}
	for _, domain := range conf.searches {
		if len(domain) > validation.DNS1123SubdomainMaxLength {
			//nolint:staticcheck // the kubelet's event text
			return fmt.Errorf("Resolv.conf file %q contains a search path which length is more than allowed %d chars!",
				c.o.ResolvConf, validation.DNS1123SubdomainMaxLength)
		}
	}
	if len(strings.Join(conf.searches, " ")) > maxSearchChars {
		//nolint:staticcheck // the kubelet's event text
		return fmt.Errorf("Resolv.conf file '%s' contains search line which length is more than allowed %d chars!",
			c.o.ResolvConf, maxSearchChars)
	}
	return nil
}

// podText names a pod as the kubelet's messages do: name_namespace(uid).
func podText(p *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", p.Name, p.Namespace, p.UID)
}

func unique(texts []string) []string {
	seen := make(map[string]bool, len(texts))
	kept := []string{}
	for _, text := range texts {
		if !seen[text] {
			seen[text] = true
			kept = append(kept, text)
		}
	}
	return kept
}
