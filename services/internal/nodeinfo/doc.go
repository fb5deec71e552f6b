// Package nodeinfo reads the properties of the node: capacity, allocatable, machine identity, kernel and operating
// system.
//
// podsync uses the capacity for admission and publishes it. nodestatus reports it. Both use this package, so they
// always agree. The values and their sources in /proc and /sys are those of the kubelet (cAdvisor). Everything is
// read from a Source. If one part fails, the other values are returned with the error.
package nodeinfo

import (
	"os"
	"path/filepath"
)

// Source is where the files of the node are.
type Source struct {
	// Root is put before every path; "" is the host's own root. Tests bring their own.
	Root string

	readFile func(path string) ([]byte, error) // os.ReadFile when nil
}

func (s Source) read(p string) ([]byte, error) {
	if s.readFile != nil {
		return s.readFile(s.path(p))
	}
	return os.ReadFile(s.path(p))
}

func (s Source) path(p string) string {
	if s.Root == "" {
		return p
	}
	return filepath.Join(s.Root, p)
}
