package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
)

// subPathsName is the folder of a pod's bind mounts, as the kubelet calls it.
const subPathsName = "volume-subpaths"

// maxNewFolders is how many folders are made for one subPath. On a file system in memory they take memory that no pod
// is charged for.
const maxNewFolders = 64

// SubPath is what one mount of a container takes of a volume.
type SubPath struct {
	Pod               *v1.Pod
	Volume, Container string
	// Index of the mount in the container's volumeMounts.
	Index int
	// Root is the volume on the node, and Path the path in it.
	Root, Path string
}

// SubPath makes the path if it is missing, and returns where on the node it is bound: what is
// there cannot be exchanged for something outside of the volume, which the processes that
// have the volume mounted could do with the path itself.
//
// The error says no more than that it failed: the pod's owner must not learn about the node's
// files. The log has the reason.
func (m *Manager) SubPath(ctx context.Context, s SubPath) (string, error) {
	if err := CheckSubPath(s.Path); err != nil {
		return "", err
	}
	if err := validUID(s.Pod.UID); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, m.opts.Deadline)
	defer cancel()
	target := filepath.Join(m.podDir(s.Pod.UID), subPathsName, s.Volume, s.Container, strconv.Itoa(s.Index))
	state, err := prepareSubPath.Do(ctx, m.opts.Foreign, s.Root,
		subPathCall{Volume: s.Root, Path: s.Path, Target: target, Private: m.opts.Private(s.Pod)})
	switch {
	case err == nil:
		return target, nil
	case !state.Tried: // it was given up, and so says nothing of the node's files but that they hang
		return "", fmt.Errorf("volumeMount %q of container %q: %w", s.Volume, s.Container, err)
	}
	m.opts.Log.Warn("subPath refused", logkey.PodUID, s.Pod.UID, logkey.Container, s.Container, "volume", s.Volume,
		"subPath", s.Path, logkey.Err, err)
	if !state.Made {
		return "", fmt.Errorf("failed to create subPath directory for volumeMount %q of container %q", s.Volume,
			s.Container)
	}
	return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", s.Volume, s.Container)
}

// subPathCall asks to bind a path in a volume to a target.
type subPathCall struct {
	Volume, Path, Target string
	// Private is the folder that the path must not be in; empty is none.
	Private string
}

// subPathState is how far a call has come.
type subPathState struct {
	// Tried says that the call has come to its end, Made that the path is there.
	Tried, Made bool
}

func (c *subPathCall) do() (subPathState, error) {
	state := subPathState{Tried: true}
	// The binding refuses anything that is no folder, such as a link to nowhere.
	if err := makeSubPath(c.Private, c.Volume, c.Path); err != nil && !errors.Is(err, fs.ErrExist) {
		return state, err
	}
	state.Made = true
	return state, bindSubPath(c.Private, c.Volume, c.Path, c.Target)
}

// CheckSubPath refuses a subPath that does not stay below its volume even as text.
func CheckSubPath(path string) error {
	if filepath.IsAbs(path) {
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", path)
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", path)
	}
	return nil
}

// makeSubPath makes the folders of the path that are missing, with the mode of the volume: a
// runtime would make them for root alone.
func makeSubPath(own, volume, path string) error {
	base, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(base, path)); !errors.Is(err, fs.ErrNotExist) {
		return nil // binding it reports what is wrong with it
	}
	info, err := os.Stat(base)
	if err != nil {
		return err
	}
	there, missing := base, strings.Split(filepath.Clean(path), "/")
	for len(missing) > 0 {
		next, err := filepath.EvalSymlinks(filepath.Join(there, missing[0]))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		there, missing = next, missing[1:]
	}
	if len(missing) > maxNewFolders {
		return fmt.Errorf("%d folders are missing, and at most %d are made", len(missing), maxNewFolders)
	}
	parent, err := openBelow(own, base, there)
	if err != nil {
		return err
	}
	return errors.Join(makeFolders(parent, missing, info.Mode()), parent.Close())
}

// makeFolders makes folders in the open folder, each in the one before.
func makeFolders(folder *os.File, names []string, mode fs.FileMode) error {
	parent := folder
	for _, name := range names {
		child, err := makeFolder(parent, name, mode)
		if parent != folder {
			_ = parent.Close() // nothing was written to it
		}
		if err != nil {
			return err
		}
		parent = child
	}
	if parent == folder {
		return nil
	}
	return parent.Close()
}

// makeFolder makes a folder in the open folder and opens it. Another process may have made it
// meanwhile: then it keeps its mode; a symbolic link is not followed.
func makeFolder(parent *os.File, name string, mode fs.FileMode) (*os.File, error) {
	made := unix.Mkdirat(int(parent.Fd()), name, 0o700)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return nil, fmt.Errorf("make folder %s: %w", name, made)
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open folder %s: %w", name, errors.Join(err, made))
	}
	child := os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name))
	if made == nil {
		if err := child.Chmod(mode); err != nil {
			return nil, errors.Join(err, child.Close())
		}
	}
	return child, nil
}

// openBelow opens what is at the path, which has no symbolic links, if it is in base and not in own. A link that
// another process puts into the way meanwhile is not followed.
func openBelow(own, base, path string) (*os.File, error) {
	rel, err := filepath.Rel(base, path)
	if err != nil {
		return nil, err
	}
	if !filepath.IsLocal(rel) {
		return nil, fmt.Errorf("%s is outside of %s", path, base)
	}
	keep, err := keepOut(own)
	if err != nil {
		return nil, err
	}
	parent, err := openWithoutLinks(filepath.Dir(path), keep)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	fd, err := unix.Openat(parent, filepath.Base(path), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	_ = unix.Close(parent)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := keep(fd); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// bindSubPath binds what is at the path to target, unless it is bound there already.
func bindSubPath(own, volume, path, target string) error {
	base, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(filepath.Join(base, path))
	if err != nil {
		return err
	}
	// A folder on which something is mounted when it is first used, is used with that.
	_, _ = os.Lstat(real + "/")
	source, err := openBelow(own, base, real)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%s became a symbolic link", real)
	}
	if bound, err := os.Lstat(target); err == nil && os.SameFile(bound, info) {
		return nil
	}
	if err := mountPointFor(target, info.IsDir()); err != nil {
		return err
	}
	// Through the descriptor: no process can make it point elsewhere.
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), target, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("bind %s: %w", real, err), os.Remove(target))
	}
	return nil
}

// mountPointFor makes an empty folder or file at target, where nothing is mounted: what the
// container's last start had bound is detached, even if its file system hangs.
func mountPointFor(target string, folder bool) error {
	for {
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing, or nothing more, is mounted
		}
		if err != nil {
			return fmt.Errorf("detach %s: %w", target, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if folder {
		return os.Mkdir(target, 0o750)
	}
	return os.WriteFile(target, nil, 0o640)
}
