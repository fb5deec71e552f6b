package pluginprocess

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrAbsent says that there is no file of a plugin.
var ErrAbsent = errors.New("it is not installed on this node")

// CheckFile reports why the file at a path must not be run; nil if it may. A plugin runs with the user of the service
// that starts it. So its file must be one that only root could have put there: otherwise any user that may write it has
// what that service has.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrAbsent
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 || info.Mode().Perm()&0o022 != 0 ||
		owner.Uid != 0 {
		return errors.New("it is not run: its file must be a program of root's that only root may write")
	}
	return nil
}
