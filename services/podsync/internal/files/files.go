// Package files keeps the folders of pods: under the root directory, under the pods' log
// directory, and the links of /var/log/containers.
//
// Guarantees: the layout is the kubelet's, so that either can take over from the other
// and log collectors find what they look for; removing what is gone succeeds; a folder
// that something is still mounted below is never removed.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxLinkName is the longest file name that file systems take, less ".log".
const maxLinkName = 251

// Layout says where the node keeps what.
type Layout struct {
	// Root is the kubelet's --root-dir, /var/lib/kubelet.
	Root string
	// PodLogs is podLogsDir, /var/log/pods.
	PodLogs string
	// ContainerLogs holds a link a container, /var/log/containers; empty makes none.
	ContainerLogs string
	// LogGroup owns the log folders, so that nodeapi may read them; 0 leaves root's.
	LogGroup int
}

// Prepare makes the folders that all pods share.
func (l Layout) Prepare() error {
	for _, d := range []string{l.Root, filepath.Join(l.Root, "pods"), filepath.Join(l.Root, "plugins"), l.ContainerLogs} {
		if d == "" {
			continue
		}
		mode := fs.FileMode(0o750)
		if d == l.ContainerLogs {
			mode = 0o755
		}
		if err := os.MkdirAll(d, mode); err != nil {
			return fmt.Errorf("node folders: %w", err)
		}
	}
	return l.logFolder(l.PodLogs)
}

// PodDir is the pod's folder.
func (l Layout) PodDir(uid types.UID) string { return filepath.Join(l.Root, "pods", string(uid)) }

// PodLogDir is the pod's log folder.
func (l Layout) PodLogDir(namespace, name string, uid types.UID) string {
	return filepath.Join(l.PodLogs, namespace+"_"+name+"_"+string(uid))
}

// EnsurePod makes the pod's folders.
func (l Layout) EnsurePod(p *v1.Pod) error {
	dir := l.PodDir(p.UID)
	for _, d := range []string{dir, filepath.Join(dir, "volumes"), filepath.Join(dir, "plugins")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return err
		}
	}
	logs := l.PodLogDir(p.Namespace, p.Name, p.UID)
	if err := l.logFolder(logs); err != nil {
		return err
	}
	for i := range p.Spec.Containers {
		if err := l.logFolder(filepath.Join(logs, p.Spec.Containers[i].Name)); err != nil {
			return err
		}
	}
	return nil
}

// logFolder makes a folder that LogGroup may read, as may what is later made in it (setgid).
func (l Layout) logFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	if l.LogGroup == 0 {
		return nil
	}
	if err := os.Chown(dir, 0, l.LogGroup); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	if err := os.Chmod(dir, 0o750|fs.ModeSetgid); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	return nil
}

// LinkLog makes the link of /var/log/containers that log collectors follow.
// logPath is the log's path below the pod's log folder.
func (l Layout) LinkLog(p *v1.Pod, container, containerID, logPath string) error {
	if l.ContainerLogs == "" {
		return nil
	}
	link := l.link(p.Namespace, p.Name, container, containerID)
	err := os.Symlink(filepath.Join(l.PodLogDir(p.Namespace, p.Name, p.UID), logPath), link)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (l Layout) link(namespace, name, container, containerID string) string {
	file := name + "_" + namespace + "_" + container
	if room := maxLinkName - len(containerID) - 1; len(file) > room {
		file = file[:room]
	}
	return filepath.Join(l.ContainerLogs, file+"-"+containerID+".log")
}

// RemovePod removes all folders of the pod and the links into them.
func (l Layout) RemovePod(namespace, name string, uid types.UID) error {
	if err := l.RemoveFolder(uid); err != nil {
		return err
	}
	return l.RemoveLogs(namespace, name, uid)
}

// RemoveLogs removes the pod's log folder and the links into it.
func (l Layout) RemoveLogs(namespace, name string, uid types.UID) error {
	logs := l.PodLogDir(namespace, name, uid)
	if err := os.RemoveAll(logs); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	return l.unlink(logs)
}

// RemoveFolder removes the pod's folder unless something is mounted below it: removing
// then would delete what is on the other side.
func (l Layout) RemoveFolder(uid types.UID) error {
	dir := l.PodDir(uid)
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted below the pod's folder", mounts[0].Mountpoint)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("pod folder: %w", err)
	}
	return nil
}

// unlink removes the links that lead below dir.
func (l Layout) unlink(dir string) error {
	if l.ContainerLogs == "" {
		return nil
	}
	entries, err := os.ReadDir(l.ContainerLogs)
	if err != nil {
		return fmt.Errorf("container logs: %w", err)
	}
	for _, e := range entries {
		link := filepath.Join(l.ContainerLogs, e.Name())
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir+"/") {
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("container logs: %w", err)
			}
		}
	}
	return nil
}

// Pods returns the UIDs of pods that have a folder.
func (l Layout) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(l.Root, "pods"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pod folders: %w", err)
	}
	uids := make([]types.UID, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

// LogPod is a pod that has a log folder.
type LogPod struct {
	Namespace, Name string
	UID             types.UID
}

// LogPods returns the pods that have log folders.
func (l Layout) LogPods() ([]LogPod, error) {
	entries, err := os.ReadDir(l.PodLogs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("log folders: %w", err)
	}
	var pods []LogPod
	for _, e := range entries {
		if parts := strings.Split(e.Name(), "_"); e.IsDir() && len(parts) == 3 {
			pods = append(pods, LogPod{Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2])})
		}
	}
	return pods, nil
}
