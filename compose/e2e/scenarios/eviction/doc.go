// Package eviction shows which pod goes when the node runs out of memory, of a disk or of process IDs, with the kubelet
// and with microlet, and what happens while a service of microlet is down. Its rig has small disks of its own.
package eviction
