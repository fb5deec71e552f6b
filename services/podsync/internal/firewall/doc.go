// Package firewall keeps the packet filter's chains that a kubelet keeps
// (makeIPTablesUtilChains).
//
// KUBE-FIREWALL drops IPv4 packets from elsewhere to 127.0.0.0/8 (CVE-2020-8558): kube-proxy sets
// route_localnet, with which neighbours and pods would reach what listens on loopback alone.
// Connections that somebody forwards there by NAT pass. KUBE-IPTABLES-HINT, in mangle, is empty:
// where it is tells programs in containers whether the node uses the legacy or the nftables
// variant of iptables.
//
// Input: the iptables and ip6tables programs of the host. Output: the chains, with the kubelet's names,
// rules and comments, so that either agent and kube-proxy find each other's and none is there twice.
//
// Guarantees: what somebody flushes is back within a period (Options); a host without one of the
// programs gets one warning, and the other family its chains; chains and rules of others are left
// alone, and everything stays when the agent ends.
package firewall
