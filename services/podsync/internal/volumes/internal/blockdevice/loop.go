package blockdevice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	loopControl = "/dev/loop-control"
	// attempts is how often a free loop device is asked for: others take them too.
	attempts = 16
)

// attach has a loop device over a file, the one that is there already or a new one. It stays when the process ends.
func attach(file string) error {
	loop, err := loopOver(file)
	if err != nil || loop != "" {
		return err
	}
	// As losetup does it: what cannot be written to, is read.
	backing, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		backing, err = unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	defer func() { _ = unix.Close(backing) }()
	control, err := unix.Open(loopControl, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", loopControl, err)
	}
	defer func() { _ = unix.Close(control) }()
	for range attempts {
		number, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("find a free loop device: %w", err)
		}
		err = onLoop(fmt.Sprintf("/dev/loop%d", number), func(loop int) error {
			return unix.IoctlSetInt(loop, unix.LOOP_SET_FD, backing)
		})
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return fmt.Errorf("no loop device for %s: each that was free was taken by another", file)
}

// detach takes the loop device from a file. One that a process has open stays until that ends, which is an error.
func detach(file string) error {
	loop, err := loopOver(file)
	if err != nil || loop == "" {
		return err
	}
	err = onLoop(loop, func(fd int) error {
		// It may have been given to another file since.
		if still, err := loopOver(file); err != nil || still != loop {
			return err
		}
		return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
	})
	if err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	if loop, err = loopOver(file); err != nil || loop == "" {
		return err
	}
	return fmt.Errorf("loop device %s over %s is in use: %w", loop, file, unix.EBUSY)
}

func onLoop(loop string, do func(fd int) error) error {
	fd, err := unix.Open(loop, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", loop, err)
	}
	if err := errors.Join(do(fd), unix.Close(fd)); err != nil {
		return fmt.Errorf("loop device %s: %w", loop, err)
	}
	return nil
}

// loopOver returns the loop device over a file, or nothing.
func loopOver(file string) (string, error) {
	// The kernel names files without symbolic links.
	dir, err := filepath.EvalSymlinks(filepath.Dir(file))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, filepath.Base(file))
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", fmt.Errorf("list loop devices: %w", err)
	}
	for _, path := range loops {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has none any more
		}
		if backingFile(string(text)) == file {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(path)))), nil
		}
	}
	return "", nil
}

// backingFile is the file that the kernel names. Of one that was removed it says so.
func backingFile(text string) string {
	return strings.TrimSuffix(strings.TrimSuffix(text, "\n"), " (deleted)")
}
