// Package identity shows how the node gets its client certificate and renews it, from the real API server.
package identity
