package samemount

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// MountID returns the ID of the mount that a file descriptor was opened on. The kernel's list of mounts has the same
// number first in each line (proc_pid_mountinfo(5)). A lookup by path could give another mount by the time it is used.
func MountID(fd int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, fmt.Errorf("file descriptor %d: the kernel does not report its mount", fd)
}
