package childpool

import (
	"fmt"
	"time"

	"github.com/microlet/microlet/services/internal/keylock"
)

// lease is the use of a child: by a call that has the lock of its path, or by a Session. On one path one call runs at a
// time, so that a path that hangs costs one child however often it is tried.
type lease struct {
	// Call is the one under way. owner is the namespace of the pod that it is for, and number counts the calls.
	Call

	owner   string
	number  uint64
	session bool
	// held is the lock of the path. A Session has none.
	held *keylock.Held
	// admitted is closed when the call may run.
	admitted chan struct{}

	// runs says that the call has a place. A Session has a child without one, too.
	runs bool
	// began is when the call was given its place, and moved when it last showed that it goes on.
	began, moved time.Time
	// hangs says that the call has not answered in time, or that its child was killed and does not end.
	hangs bool
	// lane is the file system that the path is on, below the mount point, and looked which list says so.
	lane   Lane
	point  string
	looked time.Time
}

func (l *lease) begin() {
	l.runs, l.began, l.moved = true, time.Now(), time.Now()
}

func (l *lease) fail(what string, cause error) error {
	return fmt.Errorf("%s %s: %s: %w", l.Operation, l.Path, what, cause)
}

// place finds out which file system the call is on, by a list of mount points and when it was read. Once the call runs,
// what is mounted over its path may come onto the list. What goes off the list may be what it hangs on.
func (l *lease) place(points MountPoints, read time.Time) {
	switch {
	case l.On != "":
		l.point, l.lane = l.On, Lane{Server: l.On}
	case !l.looked.Equal(read):
		if point, lane := points.of(l.Path); !l.runs || l.looked.IsZero() || len(point) > len(l.point) {
			l.point, l.lane = point, lane
		}
		l.looked = read
	}
}
