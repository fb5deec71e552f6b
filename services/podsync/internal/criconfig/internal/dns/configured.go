package dns

import (
	"fmt"
	"log/slog"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Configured returns the Configurer of a node, which checks the node's resolv.conf first. Events are of pods and of the
// Node.
func Configured(config *kubeletconfig.Config, node *v1.ObjectReference, events record.EventRecorder,
	log *slog.Logger) (*Configurer, error) {
	k := &config.Kubelet
	servers, err := clusterDNS(k.ClusterDNS)
	if err != nil {
		return nil, err
	}
	c := New(Options{
		NodeIPs: config.NodeIPs(), ClusterDNS: servers, ClusterDomain: k.ClusterDomain, ResolvConf: *k.ResolverConfig,
		Log:      log,
		Warn:     func(p *v1.Pod, reason, message string) { events.Event(p, v1.EventTypeWarning, reason, message) },
		WarnNode: func(reason, message string) { events.Event(node, v1.EventTypeWarning, reason, message) },
	})
	_ = c.Check() // which logs and records an Event of the Node
	if program := config.Node.ExperimentalMounterPath; program != "" {
		c.SetUpMounter(program)
	}
	return c, nil
}

func clusterDNS(servers []string) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(servers))
	for _, s := range servers {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("clusterDNS: %w", err)
		}
		out = append(out, ip)
	}
	return out, nil
}
