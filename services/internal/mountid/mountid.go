// Package mountid returns the ID of the mount that an open file is on.
//
// The kernel's list of mounts has the same number first in each line (proc_pid_mountinfo(5)). A lookup by path could
// give another mount by the time it is used.
package mountid

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Of returns the id of the mount that the file descriptor was opened on.
func Of(fd int) (int, error) {
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
