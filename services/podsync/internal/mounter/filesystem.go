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
// must not use up the children, however many of its paths are tried.
func (p *Pool) share(t *turn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crowd(t.path, t.on).full {
		return false
	}
	t.runs = true
	return true
}

// crowd is the calls that a call runs beside.
type crowd struct {
	where string
	calls int
	// full says that there is no room for one more.
	full bool
}

// crowd counts the calls that share something with one on a path. The lock is held. While there are few calls at all,
// it does not look where they are.
func (p *Pool) crowd(path, on string) crowd {
	var others []*turn
	for _, t := range p.turns {
		if t.runs {
			others = append(others, t)
		}
	}
	if len(others) < perFileSystem && p.left == 0 {
		return crowd{}
	}
	points, err := p.mounts.points()
	if err != nil {
		p.log.Warn("calls on volumes are not shared out among file systems", logkey.Err, err)
		return crowd{}
	}
	own := map[string]bool{}
	for _, path := range p.own {
		own[mountPoint(points, path)] = true
	}
	place := func(path, on string) string {
		if on != "" {
			return on
		}
		return mountPoint(points, path)
	}
	point := place(path, on)
	same, foreign := 0, 0
	for _, other := range others {
		at := place(other.path, other.on)
		if at == point {
			same++
		}
		if !own[at] {
			foreign++
		}
	}
	switch {
	case same >= perFileSystem:
		return crowd{"on the file system at " + point, same, true}
	case len(own) > 0 && !own[point] && p.foreignFull(foreign):
		return crowd{"on file systems that are not the node's own", foreign + p.left, true}
	}
	return crowd{}
}

// foreignFull reports whether so many calls on file systems that are not the node's own are all that may run. What an
// earlier process has left behind is most likely on such ones. The lock is held.
func (p *Pool) foreignFull(calls int) bool {
	if p.left > 0 && calls+p.left >= maxForeign {
		p.left = max(0, p.countLeft()-p.hung) // those of this process look the same
	}
	return calls >= max(maxForeign-p.left, 1)
}

// awaitShare waits until a call is over.
func (p *Pool) awaitShare(ctx context.Context, c *Call, patience <-chan time.Time) error {
	p.mu.Lock()
	changed, others := p.changed, p.crowd(c.Path, c.On)
	p.mu.Unlock()
	if !others.full {
		return nil
	}
	cause := errors.New("waited for them in vain")
	select {
	case <-changed:
		return nil
	case <-patience:
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}
	return fmt.Errorf("%s %s: not tried: %d other calls %s do not answer: %w", c.Operation, c.Path, others.calls,
		others.where, cause)
}

// mounts is where file systems are mounted, as of a moment ago.
type mounts struct {
	list func() ([]string, error)

	mu   sync.Mutex
	last []string
	read time.Time
}

// mountsAge is how old the list may be: it costs a millisecond on a node with many pods.
const mountsAge = time.Second

func (m *mounts) points() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.read) < mountsAge {
		return m.last, nil
	}
	points, err := m.list()
	if err != nil {
		return nil, err
	}
	m.last, m.read = points, time.Now()
	return points, nil
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
