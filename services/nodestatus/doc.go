// Package nodestatus speaks to the API server for the node: Node, Lease, Events, reviews of callers.
//
// It also asks the API server, for nodeapi, who a caller is and what the caller may do. It reads the host
// (addresses, /proc, /sys), the bus, and podsync's health by gRPC if the bus is silent. Cadence, reasons and
// messages are the kubelet's.
//
// It renews the Lease while podsync makes progress, whatever the state of the bus, the runtime or the API server,
// and stops after podsync has hung for 60 s. After an outage of the API server it renews the Lease within 10 s.
// Ready becomes false if podsync hangs for 60 s, the runtime fails for 30 s, pleg does not relist for 3 minutes, or the
// runtime reports that it or its network is not ready. It does not become false because something is unknown. No call
// blocks the main loop.
//
// Without a kubeconfig, Events go to the log. Not built yet: rotation of the client certificate.
package nodestatus
