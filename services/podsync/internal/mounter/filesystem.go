package mounter

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/logkey"
)

// share reports whether the call may run beside those on its file system, and counts it if so. A file system that hangs
// must not use up the children, however many of its paths are tried. Nor must calls that take long.
func (p *Pool) share(e *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crowd(e) != nil {
		return false
	}
	e.runs, e.moved = true, time.Now()
	return true
}

// crowd are calls that leave no room for another one.
type crowd struct {
	tally
	// where says where they run. long is set if only calls that take long count.
	where string
	long  bool
}

func (c *crowd) String() string {
	calls := fmt.Sprintf("%d other calls %s", c.calls, c.where)
	if c.long {
		calls = fmt.Sprintf("%d other calls that take long %s", c.calls, c.where)
	}
	switch c.hung {
	case 0:
		return calls + " are under way"
	case c.calls:
		return calls + " do not answer"
	}
	return fmt.Sprintf("%s are under way, and %d of them do not answer", calls, c.hung)
}

// tally counts calls that run.
type tally struct {
	calls, hung int
	// moved is when one of them last showed that it goes on. The end of a call shows in that of the call that runs next.
	moved time.Time
}

func (c *tally) add(e *entry) {
	c.calls++
	if e.held.Hangs() {
		c.hung++
	}
	if e.moved.After(c.moved) {
		c.moved = e.moved
	}
}

// tallies count all calls somewhere, and those that take long.
type tallies struct{ all, long tally }

func (c *tallies) add(e *entry) {
	c.all.add(e)
	if e.long {
		c.long.add(e)
	}
}

// full returns the calls that leave no room for another one, where most may run, or nil. before is how many calls that
// take long wait there before it.
func (c *tallies) full(e *entry, most, before int, where string) *crowd {
	mostLong := max(most/2, 1)
	switch {
	case c.all.calls >= most:
		return &crowd{c.all, where, false}
	case e.long && c.long.calls+before >= mostLong:
		others := &crowd{c.long, where, true}
		if c.long.calls < mostLong { // some of those before it have room, and are about to run
			others.calls += before
			others.moved = time.Now()
		}
		return others
	}
	return nil
}

// crowd returns the calls that leave no room for another one, or nil if there is room. The lock is held. While there
// are few calls at all, it does not look where they are.
func (p *Pool) crowd(e *entry) *crowd {
	if len(p.entries) <= perFileSystem/2 && p.left == 0 { // e is one of them
		return nil
	}
	points, read, err := p.mounts.points()
	if err != nil {
		p.log.Warn("calls on volumes are not shared out among file systems", logkey.Err, err)
		return nil
	}
	own := map[string]bool{}
	for _, path := range p.own {
		own[mountPoint(points, path)] = true
	}
	var same, foreign, everywhere tallies
	point := e.place(points, read)
	for other := range p.entries {
		if !other.runs {
			continue
		}
		at := other.place(points, read)
		everywhere.add(other)
		if at == point {
			same.add(other)
		}
		if !own[at] {
			foreign.add(other)
		}
	}
	if full := same.full(e, perFileSystem, p.before(e, points, read), "on the file system at "+point); full != nil {
		return full
	}
	if len(own) > 0 && !own[point] {
		most := p.foreignLimit(foreign.all.calls)
		if full := foreign.full(e, most, 0, "on file systems that are not the node's own"); full != nil {
			if !full.long {
				full.calls, full.hung = full.calls+p.left, full.hung+p.left
			}
			return full
		}
	}
	if e.long && everywhere.long.calls >= maxChildren/2 {
		return &crowd{everywhere.long, "on all file systems", true}
	}
	return nil
}

// before is how many calls that take long wait for their file system before this one, if it takes long too. Those of
// the namespace that has the fewest there come first: a hundred pods with millions of files delay no others. The lock
// is held.
func (p *Pool) before(e *entry, points []string, read time.Time) (before int) {
	if !e.long {
		return 0
	}
	var waiting []*entry
	running := map[string]int{}
	for other := range p.entries {
		switch {
		case !other.long || other.place(points, read) != e.place(points, read):
		case other.runs:
			running[other.owner]++
		default:
			waiting = append(waiting, other)
		}
	}
	for _, other := range waiting {
		if own, its := running[e.owner], running[other.owner]; its < own || its == own && other.number < e.number {
			before++
		}
	}
	return before
}

// place is the file system that the call is on, by a list of mount points and when it was read.
func (e *entry) place(points []string, read time.Time) string {
	if e.on != "" {
		return e.on
	}
	if !e.looked.Equal(read) {
		e.at, e.looked = mountPoint(points, e.path), read
	}
	return e.at
}

// foreignLimit is how many calls may run on file systems that are not the node's own, where calls of them do. Children
// that an earlier process has left behind most likely hang on such ones. The lock is held.
func (p *Pool) foreignLimit(calls int) int {
	if p.left > 0 && calls+p.left >= maxForeign {
		p.left = max(0, p.countLeft()-p.hung) // those of this process look the same
	}
	return max(maxForeign-p.left, 1)
}

// awaitShare waits until a call is over, or until there is room. A call that takes long waits for as long as those
// before it go on. If all of them hang, it waits no longer than another call.
func (p *Pool) awaitShare(ctx context.Context, c *Call, e *entry, began time.Time) error {
	for {
		p.mu.Lock()
		changed, others := p.changed, p.crowd(e)
		p.mu.Unlock()
		if others == nil {
			return nil
		}
		if e.long && others.moved.After(began) {
			began = others.moved
		}
		patience := c.Patience
		if others.hung == others.calls {
			patience = min(patience, DefaultPatience)
		}
		patience -= time.Since(began)
		if patience <= 0 {
			return notTried(c, others, errors.New("waited for them in vain"))
		}
		select {
		case <-changed:
			return nil
		case <-time.After(patience):
		case <-ctx.Done():
			return notTried(c, others, context.Cause(ctx))
		}
	}
}

func notTried(c *Call, others *crowd, cause error) error {
	return fmt.Errorf("%s %s: not tried: %s: %w", c.Operation, c.Path, others, cause)
}

// mounts is the list of mount points, which is at most mountsAge old.
type mounts struct {
	list func() ([]string, error)

	mu   sync.Mutex
	last []string
	read time.Time
}

// mountsAge is how old the list may be: it costs a millisecond on a node with many pods.
const mountsAge = time.Second

// points returns the list, and when it was read.
func (m *mounts) points() ([]string, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.read) < mountsAge {
		return m.last, m.read, nil
	}
	points, err := m.list()
	if err != nil {
		return nil, time.Time{}, err
	}
	m.last, m.read = points, time.Now()
	return points, m.read, nil
}

// mountPoints asks the kernel, which answers even if the file systems do not.
func mountPoints() ([]string, error) {
	list, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	points := make([]string, len(list))
	for i := range list {
		points[i] = list[i].MountPoint
	}
	return points, nil
}

// mountPoint returns the mount point that a path is below. It does not follow links, since that would touch them. Of an
// export that is to be mounted, such as "server:/export", it returns the server.
func mountPoint(points []string, path string) string {
	if !filepath.IsAbs(path) {
		server, _, _ := strings.Cut(path, ":/")
		return server
	}
	path, found := filepath.Clean(path), "/"
	for _, point := range points {
		if len(point) > len(found) && (path == point || strings.HasPrefix(path, point+"/")) {
			found = point
		}
	}
	return found
}
