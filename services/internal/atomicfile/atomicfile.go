// Package atomicfile replaces files at once: who opens one finds the old content or the new one, whole.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Attributes are what a file has from the moment that it has its name.
type Attributes struct {
	// Mode is the file's whatever the umask is, such as 0o600.
	Mode fs.FileMode
	// UID and GID are the owner's; -1 is this process's own.
	UID, GID int
	// Durable makes Write return when the file and its name are on the disk. Without it a machine that loses its power
	// may have an empty file.
	Durable bool
	// OneWriter says that no two processes or goroutines write this file at a time. A new file then always has the same
	// name until it is whole, so that processes that are killed leave one file at most.
	OneWriter bool
}

// Write makes the file at path hold data. The folder must be one in which only who is trusted may make files. A process
// that is killed meanwhile leaves a file there, with a name that begins with ".new-".
func Write(path string, data []byte, a Attributes) error {
	f, err := create(path, a)
	if err != nil {
		return err
	}
	err = errors.Join(fill(f, data, a), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if a.Durable {
		return SyncDir(filepath.Dir(path))
	}
	return nil
}

// create makes the file that gets the name when it is whole. Its mode is 0600.
func create(path string, a Attributes) (*os.File, error) {
	dir, name := filepath.Split(path)
	if !a.OneWriter {
		return os.CreateTemp(filepath.Dir(path), ".new-*")
	}
	temporary := filepath.Join(dir, ".new-"+name)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // O_EXCL follows no link
}

func fill(f *os.File, data []byte, a Attributes) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chown(a.UID, a.GID); err != nil {
		return err
	}
	if err := f.Chmod(a.Mode); err != nil {
		return err
	}
	if a.Durable {
		return f.Sync()
	}
	return nil
}

// SyncDir returns when the names in a folder are on the disk as they are now.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
