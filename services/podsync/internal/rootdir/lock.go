package rootdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock makes sure that one podsync alone works below a root folder: two would take each other's pods for leftovers,
// also when their runtime folders differ. The lock is the folder's own, so that no file is left of it, and it ends with
// the process.
func (d Dir) Lock() (unlock func(), err error) {
	dir := d.state()
	if err := os.MkdirAll(string(d), 0o750); err != nil { // as the kubelet makes it
		return nil, fmt.Errorf("make --root-dir: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make podsync's folder: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open podsync's folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("--root-dir=%s: another podsync works there%s: stop it, or give each its own folder", d,
				holder("/proc", f))
		} else {
			err = fmt.Errorf("lock podsync's folder %s: %w", dir, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}

// holder returns who has the lock of the open file, as far as the kernel shows it.
func holder(proc string, file *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return ""
	}
	locks, err := os.ReadFile(filepath.Join(proc, "locks"))
	if err != nil {
		return ""
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		fields := strings.Fields(line) // "1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF"
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != inode {
			continue
		}
		pid := fields[4]
		stat, err := os.ReadFile(filepath.Join(proc, pid, "stat"))
		if err == nil && strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " Z") {
			return fmt.Sprintf(
				" (pid %s, which was killed and does not end: /proc/%s/task/*/stack says what it waits for)", pid, pid,
			)
		}
		return fmt.Sprintf(" (pid %s)", pid)
	}
	return ""
}
