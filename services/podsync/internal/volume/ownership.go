package volume

import (
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"
)

// What an fsGroup may do with files: read those of a volume that is read-only, else write too.
const (
	groupReads  fs.FileMode = 0o440
	groupWrites fs.FileMode = 0o660
)

func fsGroup(p *v1.Pod) *int64 {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

// giveToGroup gives dir and all in it to the group, links too, and lets what will be made in its
// folders inherit it. fsGroupChangePolicy says nothing of the volumes that are the node's own, here
// as in the kubelet: they are given once, when they are made. A link that somebody puts into the way
// leads nowhere outside of dir. The folder itself is given last: OnRootMismatch takes one that is the group's for given
// whole.
func giveToGroup(dir string, group *int64, mask fs.FileMode) error {
	if group == nil {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	var self fs.DirEntry
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == "." {
			self = d
			return nil
		}
		return giveOne(root, path, d, int(*group), mask)
	})
	if err != nil {
		return err
	}
	return giveOne(root, ".", self, int(*group), mask)
}

func giveOne(root *os.Root, path string, d fs.DirEntry, group int, mask fs.FileMode) error {
	if err := root.Lchown(path, -1, group); err != nil {
		return err
	}
	if d.Type()&fs.ModeSymlink != 0 {
		return nil // chmod would go through it
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	mode := info.Mode() | mask
	if d.IsDir() {
		mode |= 0o110 | fs.ModeSetgid
	}
	return root.Chmod(path, mode)
}
