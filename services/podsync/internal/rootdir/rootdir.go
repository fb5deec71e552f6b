// Package rootdir takes possession of the folder --root-dir.
//
// Only one podsync can work in a root folder. Only podsync's own user can read checkpoints.
package rootdir

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Dir is the path of a root folder.
type Dir string

// state is podsync's own folder.
func (d Dir) state() string { return filepath.Join(string(d), "microlet") }

// LocalPods holds the pods that run-pod was given.
func (d Dir) LocalPods() string { return filepath.Join(d.state(), "local-pods") }

// Checkpoints is what the runtime writes containers' checkpoints to.
func (d Dir) Checkpoints() string { return filepath.Join(string(d), "checkpoints") }

// Make makes the folders that all pods share, in a root folder that is locked. A folder of checkpoints that cannot be
// closed to others is only logged: the gateway refuses to checkpoint then.
func (d Dir) Make(log *slog.Logger) error {
	if err := MakeRShared(string(d)); err != nil {
		return fmt.Errorf("--root-dir: %w", err)
	}
	if err := d.makeFolders(); err != nil {
		return fmt.Errorf("make the node's folders: %w", err)
	}
	d.labelPlugins(thisHost(), log)
	if err := closeFolder(d.Checkpoints()); err != nil {
		log.Warn("containers cannot be checkpointed", logkey.Dir, d.Checkpoints(), logkey.Err, err)
	}
	return nil
}

func (d Dir) makeFolders() error {
	for _, dir := range append(d.plugins(), filepath.Join(string(d), "pods")) {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	// The runtime writes containers' checkpoints there, which hold their memory.
	return os.MkdirAll(d.Checkpoints(), 0o700)
}

// closeFolder makes a folder this user's alone, which it may not be if something else made it. A link is left
// alone.
func closeFolder(path string) error {
	folder, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer folder.Close()
	return errors.Join(folder.Chown(os.Geteuid(), os.Getegid()), folder.Chmod(0o700))
}
