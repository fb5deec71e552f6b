// Package service provides what all services of a node share, so that a service's Run contains only its own job.
//
// It provides the sockets, the gRPC server, metrics, health, the heartbeat, the watchdog, the connection to the bus
// and an orderly stop. The service registers its functions and gRPC services before Run. Below the runtime folder,
// the package creates grpc.sock and metrics.sock in sock/<service>/. It puts HEARTBEATS/<service>.<replica> on the
// bus and sends READY, WATCHDOG and STOPPING to the supervisor.
//
// It sends WATCHDOG only while the service's own loop makes progress (Pulse). If one part fails, the service stops
// with an error that names the part. A stop has a time limit: parts that have not ended by then are named and end
// with the process.
package service
