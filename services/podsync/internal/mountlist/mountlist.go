// Package mountlist reads the kernel's list of mounts. It asks no file system, since what is mounted may hang.
package mountlist

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	mount "k8s.io/mount-utils"
)

// File is the list of the process.
const File = "/proc/self/mountinfo"

// escapes are how the kernel writes what would end a field of its list.
var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)

// Path is a path of the list as it is.
func Path(listed string) string { return escapes.Replace(listed) }

// Has reports whether something is mounted at a path.
func Has(path string) (bool, error) {
	return anyMount(path, func(point, path string) bool { return point == path })
}

// HasBelow reports whether something is mounted at a path or below it.
func HasBelow(path string) (bool, error) {
	return anyMount(path, func(point, path string) bool { return point == path || strings.HasPrefix(point, path+"/") })
}

func anyMount(path string, is func(point, path string) bool) (bool, error) {
	path, err := Resolve(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	mounts, err := mount.ParseMountInfo(File)
	if err != nil {
		return false, fmt.Errorf("list mounts: %w", err)
	}
	return slices.ContainsFunc(mounts, func(m mount.MountInfo) bool { return is(Path(m.MountPoint), path) }), nil
}

// Resolve returns the path of a mount point as the list has it: without symbolic links above it.
func Resolve(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}
