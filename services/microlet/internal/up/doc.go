// Package up implements "microlet up", which runs a whole node agent.
//
// It prepares the runtime folder, gives each service its keys, configuration and credentials, and runs all services,
// as supervised processes or in its own process. "microlet status" asks it at sock/up/grpc.sock.
//
// No process listens before the runtime folder is closed to other users. A runtime folder has only one supervisor. A
// service gets only the configuration and credentials that it reads. After a crash, a new start continues from what
// the old one left.
package up
