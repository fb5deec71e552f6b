package diskusage

import (
	"fmt"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
)

// deviceID is the number of a device as the kernel's list of mounts has it. A file system that does not answer is one.
type deviceID struct{ major, minor int }

// mounts has the device of each mount point.
type mounts map[string]deviceID

// readMounts reads the mounts that this process sees. That touches none of them.
func readMounts() (mounts, error) {
	list, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	m := make(mounts, len(list))
	for _, mount := range list { // of several on one point the last is seen
		m[mount.Mountpoint] = deviceID{mount.Major, mount.Minor}
	}
	return m, nil
}

// device is the one that the path is on.
func (m mounts) device(path string) deviceID {
	for {
		if id, ok := m[path]; ok || path == "/" {
			return id
		}
		path = filepath.Dir(path)
	}
}
