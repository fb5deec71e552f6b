package pluginregistration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/pluginsocket"
)

const (
	// maxSockets bounds the sockets, and so the goroutines.
	maxSockets = 256
	// maxFolders bounds the folders, and so the watches.
	maxFolders = 256
)

// errTooMany ends a walk.
var errTooMany = fmt.Errorf("more than %d sockets or %d folders: the rest is left out", maxSockets, maxFolders)

// identity differs between a socket and another one that replaces it at the same path. A socket's modification time is
// that of its creation.
type identity struct {
	dev, ino uint64
	modified unix.Timespec
}

// folder finds sockets below a path. It follows no links and crosses no mounts, so that nothing in the folder leads it
// elsewhere, and no foreign file system holds it up.
type folder struct{ path string }

func (f folder) below() pluginsocket.Folder { return pluginsocket.Folder{Path: f.path, OneMount: true} }

// socket opens the socket at a relative path. The caller closes the descriptor.
func (f folder) socket(relative string) (fd int, id identity, err error) {
	fd, st, err := f.below().Socket(relative)
	if err != nil {
		return -1, id, err
	}
	return fd, identity{st.Dev, st.Ino, st.Mtim}, nil
}

// sockets returns those below the folder by relative path. It calls watch with each folder before it reads it, so that
// a socket which appears meanwhile is found by one of the two. What vanishes or cannot be opened is left out. With an
// error, the sockets are those found until then.
func (f folder) sockets(watch func(dir string) error) (map[string]identity, error) {
	found := map[string]identity{}
	pending := []string{"."}
	for folders := 1; len(pending) > 0; {
		dir := pending[0]
		pending = pending[1:]
		entries, err := f.read(dir, watch)
		if err != nil {
			if dir == "." {
				return found, err
			}
			continue
		}
		for _, e := range entries {
			// The kubelet leaves out what is hidden. What is no text cannot be an endpoint.
			if strings.HasPrefix(e.Name(), ".") || !utf8.ValidString(e.Name()) {
				continue
			}
			relative := filepath.Join(dir, e.Name())
			switch {
			case e.IsDir():
				if folders++; folders > maxFolders {
					return found, errTooMany
				}
				pending = append(pending, relative)
			case e.Type()&os.ModeSocket != 0:
				fd, id, err := f.socket(relative)
				if err != nil {
					continue
				}
				_ = unix.Close(fd)
				if len(found) >= maxSockets {
					return found, errTooMany
				}
				found[relative] = id
			}
		}
	}
	return found, nil
}

// read lists a folder by name.
func (f folder) read(relative string, watch func(dir string) error) ([]os.DirEntry, error) {
	fd, err := f.below().Open(relative, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(f.path, relative)
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	if err := watch(path); err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	const most = 4 * (maxSockets + maxFolders)
	entries, err := dir.ReadDir(most)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}
