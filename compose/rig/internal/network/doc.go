// Package network creates and removes the bridge, subnets, ports and iptables rules of a rig.
//
// A Plan has addresses that no other rig and no route of the machine uses. Setup creates the bridge with the address
// of the node, and rules that let pods reach each other, the API server and other networks, even if another program
// (Docker) drops forwarded packets. Every rule has the name of the instance as a comment or is in a chain of the
// instance, so Remove finds it without a record. Other rules never change.
package network
