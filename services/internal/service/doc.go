// Package service is what every service of a node does alike, so that a service's own Run is only
// about its job.
//
// Its job: the service's sockets, gRPC server, metrics, health, heartbeat, watchdog, connection to
// the bus, and an orderly stop. Its inputs are a Config, a role, and the functions and gRPC services
// that the service gives it before Run. Its outputs are, below the runtime folder,
// grpc.sock and metrics.sock in sock/<service>/; HEARTBEATS/<service>.<replica> on the bus; and
// READY, WATCHDOG and STOPPING to the supervisor.
//
// It guarantees that the watchdog is fed only while the service's own loop turns (Pulse), that a
// failing part stops the whole service with that part's name in the error, and that a stop is
// bounded: what has not ended by then is named and left to the end of the process.
package service
