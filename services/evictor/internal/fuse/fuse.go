// Package fuse stops evictions that follow one another faster than the kubelet's could.
//
// The kubelet evicts one pod, looks after a second whether it is gone, and reads the signals again. A second eviction
// within that second would be based on readings that cannot show what the first has freed. Such a fault would empty the
// node.
package fuse

import (
	"fmt"
	"time"
)

const (
	// Pace is the least time between two evictions.
	Pace = time.Second
	// Open is how long a blown fuse lets no eviction pass.
	Open = 30 * time.Second
)

// Fuse is for one goroutine. The zero value is whole.
type Fuse struct {
	last  time.Time
	blown time.Time
}

// Check lets an eviction pass, or says why not. An eviction that comes too early blows the fuse.
func (f *Fuse) Check(now time.Time) error {
	if left := Open - now.Sub(f.blown); !f.blown.IsZero() && left > 0 {
		return fmt.Errorf("evictions are stopped for %v more, because two were wanted within %v", left, Pace)
	}
	if since := now.Sub(f.last); !f.last.IsZero() && since < Pace {
		f.blown = now
		return fmt.Errorf("a second eviction was wanted %v after the last: evictions are stopped for %v", since, Open)
	}
	return nil
}

// Evicted says that a pod was evicted at a time.
func (f *Fuse) Evicted(at time.Time) { f.last, f.blown = at, time.Time{} }
