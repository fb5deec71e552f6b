// Package proto is the whole contract between the services of a node.
//
// The messages and gRPC services live in one package per owning service under
// microlet/<service>/v1, the names of the bus in subject, and who may be whom in role.
// A message changes only by addition; what cannot, gets a new package version.
package proto

//go:generate buf generate
