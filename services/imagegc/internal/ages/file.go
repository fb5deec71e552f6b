package ages

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
)

const (
	// version of the file's format.
	version = 1
	// maxFile bounds what is read: several times what a node with the most images has.
	maxFile = 16 << 20
	// fileMode is for the owner alone.
	fileMode = 0o600
)

// file is what is stored, as JSON. Durations are in nanoseconds.
type file struct {
	Version int `json:"version"`
	// BootID and Uptime are those of the boot in which the file was written.
	BootID string        `json:"bootID"`
	Uptime time.Duration `json:"uptime"`
	// Ran is the store's clock: how long the node had run then, since the first file was begun.
	Ran    time.Duration     `json:"ran"`
	Images map[string]record `json:"images"`
}

// read reads the file.
func read(path string) (*file, error) {
	f, err := regularfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	return parse(data)
}

// parse decodes and checks a file.
func parse(data []byte) (*file, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	f := &file{}
	if err := json.Unmarshal(data, f); err != nil {
		return nil, err
	}
	if f.Version != version {
		return nil, fmt.Errorf("its version is %d, this program writes %d", f.Version, version)
	}
	if f.Ran < 0 || f.Uptime < 0 {
		return nil, fmt.Errorf("its times are %v and %v", f.Ran, f.Uptime)
	}
	if f.Images == nil {
		f.Images = map[string]record{}
	}
	for id, r := range f.Images {
		if r.Detected < 0 || r.Detected > f.Ran || r.LastUsed != nil && (*r.LastUsed < 0 || *r.LastUsed > f.Ran) {
			return nil, fmt.Errorf("image %q is from a later time than the file", id)
		}
	}
	return f, nil
}

// write replaces the file. After a crash there is the old one or the new one.
func write(path string, f file) (err error) {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	// The name is always the same, so that crashes leave one such file at most.
	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	to, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, fileMode)
	if err != nil {
		return err
	}
	_, err = to.Write(data)
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// setAside renames a file that cannot be read, so that an operator can look at it, and returns its new name.
func setAside(path string) (string, error) {
	aside := path + ".unreadable"
	if err := os.Rename(path, aside); err != nil {
		return "", err
	}
	return aside, nil
}
