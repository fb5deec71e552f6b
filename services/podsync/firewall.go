package podsync

import "github.com/microlet/microlet/services/podsync/internal/firewall"

// buildFirewall furnishes what keeps the kubelet's chains in the host's packet filter, if it is wanted.
func (n *node) buildFirewall() (err error) {
	if !*n.cfg.Kubelet.Kubelet.MakeIPTablesUtilChains {
		return nil
	}
	n.firewall, err = firewall.New(firewall.Options{Log: n.service.Log, Metrics: n.service.Metrics})
	return err
}
