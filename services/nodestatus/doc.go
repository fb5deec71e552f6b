// Package nodestatus is the node's face at the apiserver: it registers the Node, keeps its status and
// its Lease, delivers the node's Kubernetes Events, and asks for nodeapi who its callers are and what
// they may.
//
// Its inputs are the host (addresses, /proc, /sys), what the other services put on the bus
// (HEARTBEATS, RUNTIME/relist, NODE/runtime, NODE/capacity, the outbox), podsync's health by gRPC where
// the bus is silent, and the Node as the apiserver has it.
//
// Its outputs are the Node's labels, taints, annotations and status, its Lease and the Events at the
// apiserver, with the kubelet's cadence, reasons and messages; NODE/addresses and NODE/reported on the bus.
//
// What it guarantees:
//
//   - The Lease is renewed while podsync turns, whatever the bus, the runtime or the apiserver do, and
//     is no longer renewed once podsync has provably hung for 60 s. After an outage of the apiserver it is
//     renewed within 10 s.
//   - The node is not turned unready because something is unknown: by a restart of this service, of the
//     bus, or of podsync. Ready is lost when podsync hangs for 60 s, the runtime fails for 30 s, pleg
//     does not relist for 3 minutes, or the runtime says that it or its network is not ready.
//   - No call waits for ever, and its loop turns whatever its calls wait for.
//
// Without a kubeconfig there is no apiserver: it tells the other services the node's addresses, and Events
// go to its log.
//
// What it does not do yet: it reports no images and no declared features, since nothing here keeps
// account of them, and says Unknown of memory, disk and PID pressure, which nobody measures.
// It does not rotate the client certificate and does not shut pods down before the machine goes down.
package nodestatus
