package rig

import "github.com/microlet/microlet/compose/rig/internal/images"

// Images that the registry of every instance has, under the names that
// upstream's tests use.
const (
	PauseImage   = images.Pause
	BusyboxImage = images.Busybox
	AgnhostImage = images.Agnhost
)
