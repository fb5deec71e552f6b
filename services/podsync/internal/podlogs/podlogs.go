// Package podlogs removes the log folders of pods that are gone, and the links of
// /var/log/containers into them.
//
// The layout is the kubelet's, so that either can take over from the other and log
// collectors find what they look for. Removing what is gone succeeds.
package podlogs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Folders says where the logs are.
type Folders struct {
	// Pods is podLogsDir, /var/log/pods.
	Pods string
	// Links holds a link a container, /var/log/containers; empty when no links are made.
	Links string
}

// Pod is a pod that has a log folder.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

func (f Folders) dir(p Pod) string {
	return filepath.Join(f.Pods, p.Namespace+"_"+p.Name+"_"+string(p.UID))
}

// List returns the pods that have log folders. Other folders are somebody else's.
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
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	return f.unlink(func(target string) bool { return strings.HasPrefix(target, dir+"/") })
}

// RemoveContainer removes the log of a container that is gone, and the links to it. The
// logs of the container's other incarnations stay.
func (f Folders) RemoveContainer(logPath string) error {
	logPath = filepath.Clean(logPath)
	if filepath.Ext(logPath) != ".log" || !strings.HasPrefix(logPath, filepath.Clean(f.Pods)+"/") {
		return fmt.Errorf("log %s: not below %s", logPath, f.Pods)
	}
	if err := os.Remove(logPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("log: %w", err)
	}
	return f.unlink(func(target string) bool { return target == logPath })
}

// unlink removes the links whose targets are gone.
func (f Folders) unlink(gone func(target string) bool) error {
	if f.Links == "" {
		return nil
	}
	links, err := os.ReadDir(f.Links)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log links: %w", err)
	}
	for _, e := range links {
		link := filepath.Join(f.Links, e.Name())
		if target, err := os.Readlink(link); err == nil && gone(target) {
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("log links: %w", err)
			}
		}
	}
	return nil
}
