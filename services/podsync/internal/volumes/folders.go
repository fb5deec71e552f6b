package volumes

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// folders are those below an open folder. Nothing else is opened in them, even if it takes a folder's name while they
// are walked.
type folders struct{ root *os.Root }

// Open implements fs.FS.
func (f folders) Open(name string) (fs.File, error) {
	return f.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
}
