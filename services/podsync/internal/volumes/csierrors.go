package volumes

import "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"

// Usage is how full a volume is, in bytes and inodes.
type Usage = csivolume.Usage

// ErrNotMeasured is returned for a volume whose driver does not measure it.
var ErrNotMeasured = csivolume.ErrNotMeasured

// Errors that a pod waits with.
type (
	// LimitExceeded is the error of a volume that is more than the node may have attached.
	LimitExceeded = csivolume.LimitExceeded
	// NotAttached is the error of a volume that is not attached to the node yet.
	NotAttached = csivolume.NotAttached
)
