// Package eviction shows which pod goes when the node's memory runs out, with the kubelet and with microlet, and what
// happens while a service of microlet is down.
package eviction
