// Package logs manages the log folders of pods.
//
// The layout is the kubelet's, so the agents and log collectors can share it. Folders belong to root and to the
// group that may read logs, and pass that group on to their files (mode 2750). If a folder above them belongs to the
// agents and is closed to the group, the package opens it. Removing a folder that does not exist succeeds.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/removal"
	"github.com/microlet/microlet/services/internal/samemount"
)

// Folders says where the logs are.
type Folders struct {
	// Pods is podLogsDir, /var/log/pods.
	Pods string
	// Links is the folder with one link per container log, /var/log/containers; empty when no links are made.
	Links string
	// Group may read the logs; 0 leaves folders with their owner's group, readable for all.
	Group int
}

// Pod is a pod that has a log folder.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

func (f Folders) dir(p Pod) string {
	return filepath.Join(f.Pods, p.Namespace+"_"+p.Name+"_"+string(p.UID))
}

// MakeFolder makes the log folder of a pod or of a container of it for the group: a relative path below that of all
// pods' logs, with an existing parent. One that exists is brought in line. Pods may be able to write there, so no link
// is followed.
func MakeFolder(pods, path string, group int) error {
	parent, err := samemount.Folder(pods, filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	defer parent.Close()
	whole := filepath.Join(pods, path)
	err = unix.Mkdirat(int(parent.Fd()), filepath.Base(path), 0o750)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("log folder: %w", &fs.PathError{Op: "mkdir", Path: whole, Err: err})
	}
	dir, err := samemount.Folder(pods, path)
	if err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	defer dir.Close()
	return give(dir, group)
}

// give brings an open folder in line.
func give(dir *os.File, group int) error {
	mode := fs.FileMode(0o755)
	if group != 0 {
		if err := dir.Chown(-1, group); err != nil {
			return fmt.Errorf("log folder: %w", err)
		}
		mode = 0o750 | fs.ModeSetgid // after the owner, since a change of owner drops the bit
	}
	if err := dir.Chmod(mode); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	return nil
}

// Adopt brings the log folders that are there already in line, with the logs in them: those of
// a kubelet, or of a version before. It goes on after an error.
func (f Folders) Adopt() error {
	if f.Group == 0 {
		return nil
	}
	errs := []error{f.openWays()}
	pods, err := f.List()
	errs = append(errs, err)
	for _, p := range pods {
		folder := filepath.Base(f.dir(p))
		containers, err := f.adopt(folder)
		errs = append(errs, err)
		for _, c := range containers {
			if c.IsDir() {
				_, err := f.adopt(filepath.Join(folder, c.Name()))
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// adopt brings one folder in line, with the files in it, and returns what is in it.
func (f Folders) adopt(path string) ([]fs.DirEntry, error) {
	dir, err := samemount.Folder(f.Pods, path)
	if err != nil {
		return nil, gone(err)
	}
	defer dir.Close()
	errs := []error{gone(give(dir, f.Group))}
	entries, err := dir.ReadDir(-1)
	errs = append(errs, gone(err))
	for _, e := range entries {
		if e.Type().IsRegular() {
			err := unix.Fchownat(int(dir.Fd()), e.Name(), -1, f.Group, unix.AT_SYMLINK_NOFOLLOW)
			if gone(err) != nil {
				errs = append(errs, &fs.PathError{Op: "chown", Path: filepath.Join(dir.Name(), e.Name()), Err: err})
			}
		}
	}
	return entries, errors.Join(errs...)
}

// gone forgives that something was removed meanwhile.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List returns the pods that have log folders. Other folders belong to other programs.
func (f Folders) List() ([]Pod, error) {
	entries, err := os.ReadDir(f.Pods)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("log folders: %w", err)
	}
	var pods []Pod
	for _, e := range entries {
		if parts := strings.Split(e.Name(), "_"); e.IsDir() && len(parts) == 3 {
			pods = append(pods, Pod{Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2])})
		}
	}
	return pods, nil
}

// Remove removes the pod's log folder and the links that lead into it.
func (f Folders) Remove(p Pod) error {
	dir := f.dir(p)
	if err := removal.Tree(context.Background(), dir); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	_, err := f.unlink(func(_, target string) bool { return strings.HasPrefix(target, dir+"/") })
	return err
}

// RemoveContainer removes the log of a container that is gone, what was rotated out of it, and
// the links to it. The logs of the container's other instances stay.
func (f Folders) RemoveContainer(logPath string) error {
	logPath = filepath.Clean(logPath)
	if filepath.Ext(logPath) != ".log" || !strings.HasPrefix(logPath, filepath.Clean(f.Pods)+"/") {
		return fmt.Errorf("log %s: not below %s", logPath, f.Pods)
	}
	if err := f.removeLog(logPath); gone(err) != nil {
		return fmt.Errorf("log: %w", err)
	}
	_, err := f.unlink(func(_, target string) bool { return target == logPath })
	return err
}

// removeLog removes a log and what was rotated out of it. Pods may be able to write there, so no link is followed, and
// a folder stays until that of the pod goes.
func (f Folders) removeLog(path string) error {
	dir, err := folderOf(f.Pods, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	name := filepath.Base(path)
	for _, e := range entries {
		if e.Name() != name && !strings.HasPrefix(e.Name(), name+".") {
			continue
		}
		if err := unix.Unlinkat(int(dir.Fd()), e.Name(), 0); gone(err) != nil && !errors.Is(err, unix.EISDIR) {
			return &fs.PathError{Op: "unlink", Path: filepath.Join(dir.Name(), e.Name()), Err: err}
		}
	}
	return nil
}

// folderOf opens the folder of what is at a path below that of all pods' logs.
func folderOf(pods, path string) (*os.File, error) {
	relative, err := filepath.Rel(pods, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return samemount.Folder(pods, relative)
}

// IsElsewhere reports whether a log is not removed because a link or a mount is on the way to it.
func IsElsewhere(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EXDEV)
}

// Exists reports whether something is at a path below the folder of all pods' logs. If a link or a mount is on the way,
// it is unknown.
func Exists(pods, path string) (bool, error) {
	dir, err := folderOf(pods, path)
	if err == nil {
		defer dir.Close()
		err = unix.Fstatat(int(dir.Fd()), filepath.Base(path), new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// RemoveDeadLinks removes the links into the log folders that have no log any more, and returns their number. The log
// of a container that runs may be missing for the moment of its rotation.
func (f Folders) RemoveDeadLinks(runs func(containerID string) bool) (removed int, err error) {
	return f.unlink(func(link, target string) bool {
		if !strings.HasSuffix(link, ".log") || !strings.HasPrefix(target, filepath.Clean(f.Pods)+"/") {
			return false // of another program
		}
		if there, err := Exists(f.Pods, target); there || err != nil {
			return false
		}
		id := strings.TrimSuffix(link[strings.LastIndex(link, "-")+1:], ".log")
		return !runs(id)
	})
}

// unlink removes the links of which that is said.
func (f Folders) unlink(dead func(link, target string) bool) (removed int, err error) {
	if f.Links == "" {
		return 0, nil
	}
	links, err := os.ReadDir(f.Links)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("log links: %w", err)
	}
	for _, e := range links {
		link := filepath.Join(f.Links, e.Name())
		if target, err := os.Readlink(link); err == nil && dead(e.Name(), target) {
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return removed, fmt.Errorf("log links: %w", err)
			}
			removed++
		}
	}
	return removed, nil
}

var logName = regexp.MustCompile(`^(\d+)\.log(\..*)?$`)

// NextRestartCount is the restart count for a container of which neither the runtime nor the API
// knows an instance: one more than the newest log has. Some runtimes forget their
// containers when the machine boots, and a new log must not begin in an old one's file.
func (f Folders) NextRestartCount(p Pod, container string) int32 {
	dir, err := folderOf(f.Pods, filepath.Join(f.dir(p), container, "log"))
	if err != nil {
		return 0 // usually there is none yet
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return 0
	}
	var next int64
	for _, e := range entries {
		match := logName.FindStringSubmatch(e.Name())
		if e.IsDir() || match == nil {
			continue
		}
		if n, err := strconv.ParseInt(match[1], 10, 31); err == nil {
			next = max(next, n+1)
		}
	}
	return int32(min(next, math.MaxInt32))
}
