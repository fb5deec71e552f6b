// Package test runs the whole binary: "microlet up" with all services, in both placements.
//
// The runtime is a fake, and there is no API server. The tests check what the supervisor promises for real services:
// their identities, their restart after a kill, their end with the supervisor, and the output of "microlet status".
// Other tests check what the services do for pods.
package test
