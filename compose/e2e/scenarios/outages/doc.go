// Package outages shows what the node does while what it stands on is away: the API server, the runtime, its disk, its
// certificate.
package outages
