// Package dns builds the resolver configuration of a pod.
//
// It combines the pod's dnsPolicy and dnsConfig, the node's resolv.conf and the cluster DNS settings into CRI's
// DNSConfig. The result is the kubelet's, but in a stable order, and within the limits of resolvers. The event
// DNSConfigForming reports what was cut.
package dns
