// Package up is "microlet up": a whole node agent.
//
// Its job: prepare the runtime folder, give each service its keys, configuration and credentials,
// and run all services, as processes that it supervises or in its own process. Its inputs are the
// kubelet's command line and configuration, and the services' notifications and heartbeats. Its
// outputs are the runtime folder, the services, and sock/up/grpc.sock, which "microlet status" asks.
//
// It guarantees that nothing listens before the runtime folder is closed to strangers, that one
// runtime folder has one supervisor, that a service finds nothing it need not read, and that after
// its own death a new one starts from whatever the old one left.
package up
