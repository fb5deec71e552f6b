// Package network gives a rig its bridge, subnets, ports and packet filter
// rules, and takes them away again.
//
// Input: the instance's name and index. Output: a Plan with addresses that no
// other rig and no route of the machine uses, and on Setup the bridge with the
// node's address and the rules that let pods reach each other, the API server
// and the outside, also where another program (Docker) drops what is
// forwarded. Guarantees: every rule carries the instance's name as a comment,
// or is in a chain of the instance, so that Remove finds it without a record;
// rules of others are never changed.
package network
