package diskusage

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
	"unicode/utf8"
)

// Mode says what of a directory is measured.
type Mode uint8

const (
	// Tree is the directory and all that is below it on its mount. The path may also be a file.
	Tree Mode = iota
	// Files are the files directly in the directory, without the directory itself, as the kubelet measures logs.
	Files
	// FileSystem is all that is used of the file system, as the kubelet measures volumes that have their own.
	FileSystem
)

func (m Mode) String() string {
	switch m {
	case Tree:
		return "tree"
	case Files:
		return "files"
	case FileSystem:
		return "file system"
	default:
		return fmt.Sprintf("mode %d", uint8(m))
	}
}

// Dir is what is measured. Its path is absolute, clean and valid UTF-8. None of its parts may be a symbolic link.
// The last may be a mount point.
type Dir struct {
	Path string
	Mode Mode
}

func (d Dir) validate() error {
	switch {
	case !filepath.IsAbs(d.Path) || filepath.Clean(d.Path) != d.Path:
		return fmt.Errorf("path %q: it must be absolute and clean", d.Path)
	case !utf8.ValidString(d.Path):
		return fmt.Errorf("path %q: it must be UTF-8", d.Path)
	case len(d.Path) > maxPath:
		return fmt.Errorf("path %.200q…: it is longer than %d bytes", d.Path, maxPath)
	case d.Mode > FileSystem:
		return errors.New(d.Mode.String() + " is unknown")
	}
	return nil
}

// Usage is what a directory takes, and the file system that it is on.
type Usage struct {
	// UsedBytes are allocated bytes, so a sparse file counts by its blocks.
	UsedBytes uint64
	// InodesUsed counts directories as well as files.
	InodesUsed uint64
	// Unread is the number of directories that are not in the sums, because they could not be read or are too deep.
	// If it is not 0, the sums are lower bounds.
	Unread uint64
	// MountRoot says that the directory is what a mount shows there, such as a tmpfs.
	MountRoot bool

	// The file system, by statfs(2). A file system without a fixed number of inodes reports 0 for both.
	CapacityBytes, AvailableBytes uint64
	Inodes, InodesFree            uint64
}

// Measurement is a usage and its time.
type Measurement struct {
	Usage
	// Time is when the walk began.
	Time time.Time
	// Late says that the figure is older than the period only because walks take long: the next walk is under way, or
	// waits for its turn. An old figure that is not late is of a directory that does not answer.
	Late bool
}
