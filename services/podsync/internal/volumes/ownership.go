package volumes

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/logkey"
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

// giveToGroup gives dir and all in it to the group, links too, and lets what will be made in its folders inherit it.
// fsGroupChangePolicy says nothing of the volumes that are the node's own, here as in the kubelet: they are given once,
// when they are made. A link that another process puts into the way leads nowhere outside of dir. The folder itself is
// given last: if it belongs to the group, OnRootMismatch takes all of it for given.
func giveToGroup(dir string, group *int64, mask fs.FileMode) error {
	return give(dir, group, mask, func() {}, func(err error) error { return err })
}

// refusals are the files of a volume that could not be given to a group.
type refusals struct {
	Count int
	// First is the error of the first one.
	First string
}

// giveVolumeToGroup is giveToGroup for a volume with a file system of its own, which may refuse some files or all:
// those that are immutable, or on a server that knows no owners. As with the kubelet, the pod gets the volume as it is
// then. It reports the number of files that it has looked at.
func giveVolumeToGroup(ctx context.Context, dir string, group *int64, mask fs.FileMode) (refused refusals, err error) {
	var files int64
	report := func() {
		childpool.Report(ctx, files)
		files++
	}
	err = give(dir, group, mask, report, func(err error) error {
		if refused.Count++; refused.Count == 1 {
			refused.First = err.Error()
		}
		return nil
	})
	return refused, err
}

// log reports files that were not given.
func (r refusals) log(log *slog.Logger, dir string) {
	if r.Count > 0 {
		log.Warn("files of a volume stay with their group", logkey.Dir, dir, "files", r.Count, logkey.Err, r.First)
	}
}

// give calls begun before each file, and asks refused what to do about an error of one. What others remove meanwhile
// needs no group.
func give(dir string, group *int64, mask fs.FileMode, begun func(), refused func(error) error) error {
	if group == nil {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	one := func(path string, d fs.DirEntry) error {
		begun()
		if err := giveOne(root, path, d, int(*group), mask); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return refused(err)
		}
		return nil
	}
	var self fs.DirEntry
	err = fs.WalkDir(folders{root}, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path != "." && errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path == ".":
			self = d
			return nil
		}
		return one(path, d)
	})
	if err != nil {
		return err
	}
	return one(".", self)
}

// giveOne leaves alone what is right already, so that an attempt of a volume with many files gets further than the one
// before, which had no more time.
func giveOne(root *os.Root, path string, d fs.DirEntry, group int, mask fs.FileMode) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link, mode := d.Type()&fs.ModeSymlink != 0, info.Mode()|mask
	if d.IsDir() {
		mode |= 0o110 | fs.ModeSetgid
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(stat.Gid) == group && (link || mode == info.Mode()) {
		return nil
	}
	if err := root.Lchown(path, -1, group); err != nil {
		return err
	}
	if link {
		return nil // chmod would go through it
	}
	return root.Chmod(path, mode)
}
