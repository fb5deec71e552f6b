package childpool

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Lane is a file system, whose calls share what they may have of a Pool. A device has one lane, wherever it is mounted.
type Lane struct {
	Major, Minor int
	// Server is that of an export that is not mounted, or is not any more.
	Server string
}

// MountPoints have the file system of each mount point.
type MountPoints map[string]Lane

// of returns the mount point that a path is below, and its file system. It does not follow links, since that would
// touch them. Of an export that is to be mounted, such as "server:/export", it returns the server.
func (m MountPoints) of(path string) (point string, lane Lane) {
	if !filepath.IsAbs(path) {
		server, _, _ := strings.Cut(path, ":/")
		return server, Lane{Server: server}
	}
	for point = filepath.Clean(path); ; point = filepath.Dir(point) {
		if lane, ok := m[point]; ok || point == "/" {
			return point, lane
		}
	}
}

// mounts is the list of mount points, which is at most mountsAge old. The pool's lock is held.
type mounts struct {
	list func() (MountPoints, error)
	log  *slog.Logger
	last MountPoints
	read time.Time
}

// mountsAge is how old the list may be: it costs a millisecond on a node with many pods.
const mountsAge = time.Second

// points returns the list, and when it was read. It is empty if it could never be read.
func (m *mounts) points() (MountPoints, time.Time) {
	if m.read.IsZero() || time.Since(m.read) >= mountsAge {
		points, err := m.list()
		if err == nil {
			m.last = points
		} else {
			m.log.Warn("calls on volumes are shared out among file systems by an old list of mounts", logkey.Err, err)
		}
		m.read = time.Now()
	}
	return m.last, m.read
}

// kernelMounts is the kernel's list of what this process sees. The kernel answers even if the file systems do not.
func kernelMounts() (MountPoints, error) {
	list, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	points := make(MountPoints, len(list))
	for _, m := range list { // of several on one point the last is seen
		points[m.Mountpoint] = Lane{Major: m.Major, Minor: m.Minor}
	}
	return points, nil
}
