// Package nodelogs serves the logs of the node: the files below /var/log and the journal.
//
// No path and no link leads out of the log folders, and the package opens only files and folders. It serves only
// what the user and groups of the process may read.
package nodelogs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
)

// Folder of the node's logs.
const Folder = "/var/log"

// Files are the files below the first of the folders. Links may lead into any of them.
type Files []string

var _ http.FileSystem = Files(nil)

// Open implements http.FileSystem.
func (f Files) Open(name string) (http.File, error) {
	if strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("open %q: no file has such a name: %w", name, fs.ErrNotExist)
	}
	rel := strings.TrimPrefix(path.Clean("/"+name), "/")
	if rel == "" {
		rel = "."
	}
	file, err := open(f[0], rel)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return file, err
	}
	// It may be a link that is absolute, as those of /var/log/containers are. Where it leads is opened
	// below a folder too, so that a link that changes meanwhile leads nowhere else.
	real, linkErr := filepath.EvalSymlinks(filepath.Join(f[0], rel))
	if linkErr != nil {
		return nil, linkErr
	}
	for _, folder := range f {
		top, err := filepath.EvalSymlinks(folder)
		if err != nil {
			continue
		}
		if rel, err := filepath.Rel(top, real); err == nil && filepath.IsLocal(rel) {
			return open(top, rel)
		}
	}
	return nil, fmt.Errorf("open %s: it leads out of the log folders: %w", name, fs.ErrPermission)
}

// open opens a file or folder below dir, and nothing else.
func open(dir, rel string) (http.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(rel, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) {
		file, err = regularfile.In(root, rel)
	}
	if errors.Is(err, regularfile.ErrNotRegular) {
		err = fmt.Errorf("%w: %w", err, fs.ErrPermission)
	}
	if err != nil {
		return nil, err
	}
	return file, nil
}
