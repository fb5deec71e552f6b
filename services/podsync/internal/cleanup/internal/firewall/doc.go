// Package firewall maintains the kubelet's iptables chains (makeIPTablesUtilChains).
//
// KUBE-FIREWALL drops IPv4 packets from other hosts to 127.0.0.0/8 (CVE-2020-8558): kube-proxy sets route_localnet,
// so neighbors and pods could otherwise reach programs that listen only on loopback. Connections that NAT forwards
// there pass. KUBE-IPTABLES-HINT, in mangle, is empty: it shows containers whether the node uses legacy or nftables
// iptables.
//
// Names, rules and comments are the kubelet's, so the agents and kube-proxy share the chains. Chains that are
// flushed come back within a period (Options). A host without iptables or ip6tables gets one warning, and the other
// family still works. The package does not change other chains and rules. Everything stays when the agent ends.
package firewall
