package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// hide gives the calling thread, and the processes that it starts, a view of the file systems of its own in which these
// folders are empty, and these files are /dev/null. What is mounted elsewhere later appears there too. A process that
// may search every folder, or connect to every socket, reaches nothing in them. What does not exist is left out.
func hide(paths []string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &os.PathError{Op: "make a slave", Path: "/", Err: err}
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.IsDir() {
			const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
			err = unix.Mount("tmpfs", path, "tmpfs", flags, "size=4k,mode=0755")
		} else {
			err = unix.Mount(os.DevNull, path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return &os.PathError{Op: "hide", Path: path, Err: err}
		}
	}
	return nil
}
