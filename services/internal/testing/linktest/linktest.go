// Package linktest exchanges a folder for a link as a container does that wants to lead root astray.
package linktest

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Race exchanges two paths as fast as it can, until stop is called, which waits for its end. A path may be absent for a
// while.
func Race(a, b string) (stop func()) {
	end := make(chan struct{})
	var racer sync.WaitGroup
	racer.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	})
	return func() { close(end); racer.Wait() }
}
