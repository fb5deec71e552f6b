package reading

import (
	"context"
	"math"
)

// disk is what a filesystem has.
type disk struct {
	// device identifies a filesystem.
	device uint64
	// capacity and available are bytes; available is what users other than root may take.
	capacity, available int64
	// inodes and inodesFree are 0 where the filesystem does not count them.
	inodes, inodesFree int64
}

// disk asks the filesystem that the path is on.
func (r *Reader) disk(ctx context.Context, path string) (disk, error) {
	u, err := r.usage(ctx, path)
	if err != nil {
		return disk{}, err
	}
	return disk{
		device: u.DeviceID, capacity: bounded(u.Capacity), available: bounded(u.Available),
		inodes: bounded(u.Inodes), inodesFree: bounded(u.InodesFree),
	}, nil
}

func bounded(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
