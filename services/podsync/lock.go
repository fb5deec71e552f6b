package podsync

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// stateDir is podsync's own folder below --root-dir.
func stateDir(rootDir string) string { return filepath.Join(rootDir, "microlet") }

// lockRoot makes sure that one podsync alone works below a root folder: two would take each other's pods for leftovers,
// also when their runtime folders differ. The lock is the folder's own, so that no file is left of it, and it ends with
// the process.
func lockRoot(rootDir string) (unlock func(), err error) {
	dir := stateDir(rootDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make podsync's folder: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open podsync's folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("--root-dir=%s: another podsync works there: stop it, or give each its own folder", rootDir)
		} else {
			err = fmt.Errorf("lock podsync's folder %s: %w", dir, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}
