package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
)

// SubPaths unmount the subPaths of volumes that several pods may have: as long as a subPath is mounted, the volume
// cannot be unmounted from the node.
type SubPaths struct {
	// RootDir is the kubelet's --root-dir.
	RootDir string
	Foreign childpool.Runner
}

// Unmount unmounts a pod's subPaths of the volume that is mounted at a path.
func (s SubPaths) Unmount(ctx context.Context, pod types.UID, volume string) error {
	dir := filepath.Join(s.RootDir, "pods", string(pod), subPathsName)
	folders, err := subPathsOf(volume, dir)
	if err != nil {
		return err
	}
	var tasks []func() error
	for _, folder := range folders {
		tasks = append(tasks, func() error {
			// The volume may hang, not the file system on which all pods have their folders.
			_, err := unmountSubPaths.DoOn(ctx, s.Foreign, folder, folder, removeCall{Dir: folder})
			return err
		})
	}
	return atOnce(tasks...)
}

// subPathsOf returns the folders in dir, one for each volume, that have binds of something in the volume at a path.
// They come from the kernel's list, not from the names of the folders: the kubelet names them by the PersistentVolume.
func subPathsOf(volume, dir string) ([]string, error) {
	dir, err := withoutLinks(dir)
	if err == nil {
		volume, err = withoutLinks(volume)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	mounts, err := mount.ParseMountInfo(mountlist.File)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var there []mount.MountInfo
	for _, m := range mounts {
		if mountlist.Path(m.MountPoint) == volume {
			there = append(there, m)
		}
	}
	var folders []string
	for _, m := range mounts {
		below, ok := strings.CutPrefix(mountlist.Path(m.MountPoint), dir+"/")
		if !ok || !slices.ContainsFunc(there, func(of mount.MountInfo) bool { return shows(&m, &of) }) {
			continue
		}
		name, _, _ := strings.Cut(below, "/")
		if folder := filepath.Join(dir, name); !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	return folders, nil
}

// shows reports whether a mount shows what another one shows, or a part of it.
func shows(m, of *mount.MountInfo) bool {
	const deleted = "//deleted" // the kernel's mark of a folder that is there no more
	root, whole := strings.TrimSuffix(m.Root, deleted), strings.TrimSuffix(of.Root, deleted)
	return m.Major == of.Major && m.Minor == of.Minor &&
		(root == whole || strings.HasPrefix(root, strings.TrimSuffix(whole, "/")+"/"))
}
