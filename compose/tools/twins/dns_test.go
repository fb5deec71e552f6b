package twins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
)

// resolving is a pod that gets a resolv.conf, and that of the node.
type resolving struct {
	Pod                 *v1.Pod
	ResolvConf          string
	NoFile              bool
	NodeIPs, ClusterDNS []string
	ClusterDomain       string
}

// resolved is the configuration, and the events about it and about the node's resolv.conf.
type resolved struct {
	Err                        string
	Servers, Searches, Options []string
	Events                     []string
}

var _ = register(Pair[resolving, resolved]{
	Name:     "dns",
	Generate: drawResolving,
	Upstream: kubeletDNS,
	Ours:     ourDNS,
	Branches: func(in resolving, out resolved) []string {
		var did []string
		for _, part := range []string{"Nameserver limits", "Search Line limits", "MissingClusterDNS for the node",
			"MissingClusterDNS for the pod", "more than 29 domains", "more than 32 domains", "a search path",
			"search line which"} {
			if slices.ContainsFunc(out.Events, func(event string) bool { return strings.Contains(event, part) }) {
				did = append(did, part)
			}
		}
		for what, is := range map[string]bool{
			"is an error": out.Err != "", "the cluster's servers": slices.Contains(out.Options, "ndots:5"),
			"nothing":            out.Err == "" && len(out.Servers)+len(out.Searches)+len(out.Options) == 0,
			"the machine itself": slices.Contains(out.Searches, "."), "options": len(out.Options) > 1,
			"other servers": in.Pod.Spec.DNSConfig != nil && len(in.Pod.Spec.DNSConfig.Nameservers) > 0,
		} {
			if is {
				did = append(did, what)
			}
		}
		return did
	},
	Wanted: []string{"Nameserver limits", "Search Line limits", "MissingClusterDNS for the node",
		"MissingClusterDNS for the pod", "more than 29 domains", "more than 32 domains", "a search path", "search line which",
		"is an error", "the cluster's servers", "nothing", "the machine itself", "options", "other servers"},
	Differences: []Difference[resolving, resolved]{
		{Name: "knows the value in the name of an option", As: splitOptions},
		{Name: "says where there is no address", Adjust: func(in resolving, out *resolved) bool {
			const say = "CheckLimitsForResolvConf for the node: nameserver list is empty "
			if len(out.Events) == 0 || out.Events[0] != say {
				return false
			}
			var problems []string
			for i, line := range strings.Split(in.ResolvConf, "\n") {
				if slices.Equal(strings.Fields(line), []string{"nameserver"}) {
					problems = append(problems, fmt.Sprintf("line %d: nameserver without an address", i+1))
				}
			}
			out.Events = slices.Clone(out.Events)
			out.Events[0] = "CheckLimitsForResolvConf for the node: resolvConf: resolv.conf: " + strings.Join(problems, "\n")
			return true
		}},
	},
	Break: func(_ resolving, out *resolved) {
		out.Options = slices.DeleteFunc(out.Options, func(o string) bool { return o == "edns0" })
	},
})

// splitOptions makes a name and a value of a name with a colon.
func splitOptions(in resolving) (resolving, bool) {
	split := false
	in.Pod = in.Pod.DeepCopy()
	if c := in.Pod.Spec.DNSConfig; c != nil {
		for i := range c.Options {
			name, value, found := strings.Cut(c.Options[i].Name, ":")
			if !found {
				continue
			}
			if more := c.Options[i].Value; more != nil && *more != "" {
				value += ":" + *more
			}
			c.Options[i], split = v1.PodDNSConfigOption{Name: name, Value: &value}, true
		}
	}
	return in, split
}

func drawResolving(s *Source) resolving {
	in := resolving{
		NodeIPs: OneOf(s, []string{"10.0.0.1"}, nil, []string{"10.0.0.1", "fd00::1"}, []string{"fd00::1"}),
		ClusterDNS: OneOf(s, []string{"10.96.0.10"}, nil, []string{"10.96.0.10", "fd02::a"}, []string{"10.0.0.8", "10.0.0.9",
			"10.0.0.8", "10.0.0.7"}),
		ClusterDomain: OneOf(s, "cluster.local", "", "corp.example"), NoFile: s.Percent(15),
	}
	in.Pod = drawNamedPod(s)
	in.Pod.Spec.HostNetwork = s.Percent(20)
	in.Pod.Spec.DNSPolicy = OneOf(s, v1.DNSClusterFirst, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSDefault,
		v1.DNSNone)
	if s.Percent(40) {
		in.Pod.Spec.DNSConfig = drawDNSConfig(s)
	}
	var b strings.Builder
	for range OneOf(s, 0, 1, 2, 3, 5, 8) {
		b.WriteString(drawLine(s))
		b.WriteString(OneOf(s, "\n", "\n", "\n", "\r\n", ""))
	}
	in.ResolvConf = b.String()
	return in
}

func drawDNSConfig(s *Source) *v1.PodDNSConfig {
	c := &v1.PodDNSConfig{}
	for range OneOf(s, 0, 1, 2, 3) {
		c.Nameservers = append(c.Nameservers, OneOf(s, "1.1.1.1", "10.1.1.1", "10.96.0.10", "2001:db8::1"))
	}
	for range OneOf(s, 0, 1, 2, 3) {
		c.Searches = append(c.Searches, drawDomains(s)...)
	}
	for range OneOf(s, 0, 1, 2, 3) {
		c.Options = append(c.Options, v1.PodDNSConfigOption{Name: OneOf(s, "ndots", "edns0", "timeout", "rotate", "ndots:1"),
			Value: OneOf(s, nil, new("2"), new(""), new("a:b"))})
	}
	return c
}

func drawDomains(s *Source) []string {
	switch OneOf(s, "", "", "", "", "", "", "", "many", "wide", "long") {
	case "many":
		var all []string
		for i := range OneOf(s, 27, 28, 29, 30, 31, 32, 33) {
			all = append(all, fmt.Sprint("d", i))
		}
		return all
	case "wide":
		var all []string
		for i := range OneOf(s, 8, 9, 10, 11, 12) {
			all = append(all, fmt.Sprint(strings.Repeat("w", OneOf(s, 200, 203, 204, 220)), i))
		}
		return all
	case "long":
		return []string{strings.Repeat("l", OneOf(s, 252, 253, 254))}
	}
	return []string{OneOf(s, "corp.example", "a", "a.", ".", "svc.cluster.local", "b..", "cluster.local")}
}

func drawLine(s *Source) string {
	space := OneOf(s, " ", " ", "\t", "  ")
	var words []string
	switch kind := OneOf(s, "nameserver", "nameserver", "search", "search", "options", "other"); kind {
	case "nameserver":
		words = []string{kind}
		if !s.Percent(5) {
			words = append(words, OneOf(s, "10.1.1.1", "10.1.1.2", "10.1.1.3", "fe80::1%eth0", "10.96.0.10", "x"))
		}
	case "search":
		words = []string{kind}
		for range OneOf(s, 0, 1, 2, 3) {
			words = append(words, drawDomains(s)...)
		}
	case "options":
		words = []string{kind}
		for range OneOf(s, 0, 1, 2, 3) {
			words = append(words, OneOf(s, "ndots:2", "ndots:3", "edns0", "timeout:1", "rotate", "a:b:c", "a", ":", "timeout"))
		}
	default:
		words = []string{OneOf(s, "", "#", "# nameserver 1.1.1.1", ";", "domain example.org", "sortlist 1.1.1.1",
			"#nameserver",
			"nameservers 1.1.1.1", "\u00a0nameserver 10.1.1.9", "\f", "NAMESERVER 1.1.1.1")}
	}
	return OneOf(s, "", "", " ", "\t") + strings.Join(words, space) + OneOf(s, "", "", " ", " # comment")
}

// file is the node's resolv.conf, "" without one.
func (in *resolving) file(at *scratch) string {
	if in.NoFile {
		return ""
	}
	path := filepath.Join(at.root, "resolv.conf")
	must(os.WriteFile(path, []byte(in.ResolvConf), 0o600))
	return path
}

type eventsOf struct{ events *[]string }

func (r eventsOf) WithLogger(klog.Logger) record.EventRecorderLogger { return r }

func (r eventsOf) Event(object runtime.Object, _, reason, message string) {
	kind := "node"
	if _, is := object.(*v1.Pod); is {
		kind = "pod"
	}
	*r.events = append(*r.events, event(kind, reason, message))
}

func (r eventsOf) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (r eventsOf) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {
}

func event(kind, reason, message string) string { return reason + " for the " + kind + ": " + message }

func resolvedOf(c *runtimeapi.DNSConfig, err error, events []string, path string) resolved {
	out := resolved{}
	if err != nil {
		out.Err = "the file is refused"
		if errors.Is(err, os.ErrNotExist) {
			out.Err = "there is no file"
		}
	} else {
		out.Servers, out.Searches = slices.Concat(c.Servers), slices.Concat(c.Searches)
		out.Options = slices.Concat(c.Options)
		slices.Sort(out.Options) // the kubelet's have no order
	}
	for _, e := range events {
		if path != "" {
			e = strings.ReplaceAll(e, path, "resolv.conf")
		}
		out.Events = append(out.Events, e)
	}
	return out
}

func kubeletDNS(in resolving) resolved {
	at := takeScratch()
	defer at.giveBack()
	var events []string
	path := in.file(at)
	c := dns.NewConfigurer(eventsOf{&events}, &v1.ObjectReference{Kind: "Node"}, kubeIPs(in.NodeIPs),
		kubeIPs(in.ClusterDNS), in.ClusterDomain, path)
	if path != "" { // as in syncLoop
		c.CheckLimitsForResolvConf(klog.Background())
	}
	config, err := c.GetPodDNS(context.Background(), in.Pod)
	return resolvedOf(config, err, events, path)
}

func ourDNS(in resolving) resolved {
	at := takeScratch()
	defer at.giveBack()
	var events []string
	path := in.file(at)
	c := criconfig.TwinDNS(criconfig.TwinDNSOptions{
		NodeIPs: addresses(in.NodeIPs), ClusterDNS: addresses(in.ClusterDNS), ClusterDomain: in.ClusterDomain,
		ResolvConf: path, Log: slog.New(slog.DiscardHandler),
		Warn:     func(_ *v1.Pod, reason, message string) { events = append(events, event("pod", reason, message)) },
		WarnNode: func(reason, message string) { events = append(events, event("node", reason, message)) },
	})
	_ = c.Check()
	config, err := c.PodDNS(in.Pod)
	return resolvedOf(config, err, events, path)
}

func addresses(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
