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
//
// A process that was killed and does not end, because the kernel holds a thread of it, keeps its lock and does nothing
// any more. One successor may work beside it.
func (d Dir) Lock() (unlock func(), err error) { return d.lock("/proc") }

func (d Dir) lock(proc string) (unlock func(), err error) {
	if err := os.MkdirAll(string(d), 0o750); err != nil { // as the kubelet makes it
		return nil, fmt.Errorf("make --root-dir: %w", err)
	}
	if err := os.MkdirAll(d.state(), 0o700); err != nil {
		return nil, fmt.Errorf("make podsync's folder: %w", err)
	}
	first, dead, err := d.lockFolder(proc, d.state())
	if err != nil && !dead {
		return nil, err
	}
	// The second lock is for a successor while its predecessor has the first. Without a successor, it is free.
	second, _, err := d.lockFolder(proc, string(d))
	switch {
	case err != nil && first != nil:
		return nil, errors.Join(err, first.Close())
	case err != nil:
		return nil, err
	case first == nil:
		return func() { _ = second.Close() }, nil // closing releases the lock
	}
	return func() { _ = first.Close() }, second.Close()
}

// lockFolder locks one folder; dead says that who has the lock was killed and does not end.
func (d Dir) lockFolder(proc, dir string) (locked *os.File, dead bool, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, false, fmt.Errorf("open podsync's folder: %w", err)
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		return f, false, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		var who string
		who, dead = holder(proc, f)
		err = fmt.Errorf("--root-dir=%s: another podsync works there%s: stop it, or give each its own folder", d, who)
	} else {
		err = fmt.Errorf("lock podsync's folder %s: %w", dir, err)
	}
	return nil, dead, errors.Join(err, f.Close())
}

// holder returns who has the lock of the open file, as far as the kernel shows it, and whether that process was killed
// and does not end.
func holder(proc string, file *os.File) (who string, dead bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return "", false
	}
	locks, err := os.ReadFile(filepath.Join(proc, "locks"))
	if err != nil {
		return "", false
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
			), true
		}
		return fmt.Sprintf(" (pid %s)", pid), false
	}
	return "", false
}
