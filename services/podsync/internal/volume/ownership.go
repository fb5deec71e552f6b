package volume

import (
	"io/fs"
	"os"
	"path/filepath"

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

// giveToGroup gives dir and all in it to the group, and lets what will be made in its folders
// inherit it. fsGroupChangePolicy says nothing of the volumes that are the node's own, here
// as in the kubelet: they are given once, when they are made.
func giveToGroup(dir string, group *int64, mask fs.FileMode) error {
	if group == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return giveOne(path, d, *group, mask)
	})
}

func giveFolderToGroup(dir string, group *int64, mask fs.FileMode) error {
	if group == nil {
		return nil
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	return giveOne(dir, fs.FileInfoToDirEntry(info), *group, mask)
}

func giveOne(path string, d fs.DirEntry, group int64, mask fs.FileMode) error {
	if err := os.Lchown(path, -1, int(group)); err != nil {
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
	return os.Chmod(path, mode)
}
