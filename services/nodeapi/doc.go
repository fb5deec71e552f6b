// Package nodeapi serves the kubelet's HTTP API to kubectl, Prometheus, metrics-server and the control plane, and the
// Pods API to agents on the node.
//
// It serves ports 10250, 10248 and, if configured, 10255, and is the only process that listens on the network. It
// writes nothing, has no API credential and no capability, and does not open the runtime's socket. On 10250 it
// authenticates and authorizes every request, except as the configuration says; nodestatus asks the API server for
// it. A path that does not exist needs the right to everything.
//
// The bytes of exec, attach and port-forward pass only through nodeapi and the runtime. Connections, requests, logs
// and streams are limited, and idle ones are closed. Unknown callers get a part of the connections, shared among
// their addresses, and never take a connection of a known caller.
package nodeapi
