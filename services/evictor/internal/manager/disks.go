package manager

import (
	"context"
	"time"

	"github.com/microlet/microlet/services/evictor/internal/reading"
)

// disks reads the filesystems beside the loop, one reading at a time: one that hangs must not keep the loop from the
// other signals.
type disks struct {
	results chan reading.Result
	// underWay says that a reading has not been taken from results yet; it began at began.
	underWay    bool
	began, next time.Time
	// outdated says that pods were evicted since the newest reading began.
	outdated  bool
	evictedAt time.Time
	readOnce  bool
}

// read begins a reading if one is due.
func (d *disks) read(ctx context.Context, now time.Time, period time.Duration,
	read func(context.Context) reading.Result,
) {
	if d.underWay || now.Before(d.next) {
		return
	}
	d.underWay, d.began, d.next = true, now, now.Add(period)
	go func() { d.results <- read(ctx) }()
}

// done notes that a result was taken.
func (d *disks) done() {
	d.underWay, d.readOnce = false, true
	if !d.began.Before(d.evictedAt) {
		d.outdated = false
	}
}

// outdate says that an eviction has changed what was read.
func (d *disks) outdate(now time.Time) { d.outdated, d.evictedAt, d.next = true, now, now }

// wait waits for the reading that is under way.
func (d *disks) wait() {
	if d.underWay {
		<-d.results
	}
}
