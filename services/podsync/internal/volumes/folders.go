package volumes

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// folders are the folders below an open one. Only folders are opened in them, even if a file takes the name of a folder
// during the walk.
type folders struct{ root *os.Root }

// Open implements fs.FS.
func (f folders) Open(name string) (fs.File, error) {
	return f.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
}
