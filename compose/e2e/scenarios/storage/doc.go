// Package storage shows what becomes of the volumes of a CSI driver that truly mounts, with the real controllers beside
// it.
package storage
