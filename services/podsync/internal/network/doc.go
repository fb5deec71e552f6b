// Package network gives a pod its resolver configuration.
//
// Its input is the pod's dnsPolicy and dnsConfig, the node's resolv.conf and the cluster's
// DNS settings of KubeletConfiguration; its output is CRI's DNSConfig. The result is the
// kubelet's, but in a stable order, and never beyond the limits of resolvers: what had to
// be cut is told as the event DNSConfigForming.
package network
