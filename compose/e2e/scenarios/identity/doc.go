// Package identity shows how the node gets its client certificates from the real API server.
package identity
