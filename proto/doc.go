// Package proto contains the contract between the services of a node.
//
// The messages and gRPC services are in one package per owning service, microlet/<service>/v1. Package subject has
// the names of the bus. Package role has the roles. A message changes only by addition. Any other change needs a new
// package version.
package proto

//go:generate buf generate
