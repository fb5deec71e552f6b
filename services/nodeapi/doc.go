// Package nodeapi is the node's edge: the kubelet's HTTP API for kubectl, Prometheus, metrics-server and
// the control plane, and the only process that listens to the network.
//
// Its inputs are requests on port 10250, 10248 and, if asked for, 10255; the pods and their statuses from
// the bus; the container runtime through the CRI gateway's role nodeapi; container logs and /var/log
// from the disk; the other services' metrics and health from their sockets; and nodestatus's word on who
// a caller is and what he may. Its outputs are answers.
//
// What it guarantees:
//
//   - It writes nothing, holds no credential of the apiserver's, does not open the runtime's socket and
//     has no capability; its private key is the serving one.
//   - Nobody passes on 10250 without having been authenticated and authorized, but as the configuration
//     says; a path that does not exist is refused like one that needs the right to all.
//   - The bytes of exec, attach and port-forward pass through it and the runtime alone.
//   - Connections, requests, logs and streams are bounded each, and what stands still ends; its end ends
//     these and nothing else.
//   - Strangers have a part of the connections, and few places in which they are authenticated, shared out
//     among their addresses; they give way to each other, and never take a known caller's.
package nodeapi
