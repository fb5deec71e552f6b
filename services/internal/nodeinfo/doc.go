// Package nodeinfo reads what a node is and has: capacity, allocatable, machine identity, kernel and
// operating system. podsync publishes the capacity that it admits by, nodestatus reports it; both
// read it here, so that the two never disagree.
//
// The figures and their places in /proc and /sys are the kubelet's (its cAdvisor's). Everything is
// read from a Source, and each part fails alone: what could be read is returned along with the error.
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
