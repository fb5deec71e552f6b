// Package podfolders names the folders in which pods have files on the node's disk, in the kubelet's layout.
//
// Which volumes have figures, and which of them count as ephemeral storage, is the kubelet's choice: emptyDir,
// configMap, secret, downwardAPI and projected have some, hostPath and images have none. The names come over the bus
// and cannot lead out of the folders of pods.
package podfolders

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/microlet/microlet/services/internal/diskusage"
)

// Layout is where the folders of all pods are.
type Layout struct {
	// Root is the kubelet's root folder, and Logs its podLogsDir.
	Root, Logs string
}

// Resolved is the layout without links on the way, since a walk follows none. Only root may put them there.
func (l Layout) Resolved() Layout { return Layout{resolved(l.Root), resolved(l.Logs)} }

func resolved(dir string) string {
	if path, err := filepath.EvalSymlinks(dir); err == nil {
		return path
	}
	return filepath.Clean(dir)
}

// Pod is the pod of the folders.
type Pod struct {
	UID, Namespace, Name string
	Volumes              []v1.Volume
	// Containers are all of the pod. Their termination logs count.
	Containers []string
	// Running are the containers with logs that are named by themselves. The logs of the others are among what else the
	// pod has.
	Running []string
}

// Folders are those of one pod.
type Folders struct {
	Volumes []Volume
	// Logs are those of containers, by name.
	Logs map[string]diskusage.Dir
	// Own is what else the pod has.
	Own []diskusage.Dir
}

// Volume is the folder of a volume.
type Volume struct {
	Name string
	Dir  diskusage.Dir
	// Ephemeral says that it counts as the pod's local ephemeral storage.
	Ephemeral bool
}

// Of returns the folders of a pod, each once, however often a volume or a container is named. It leaves out what cannot
// be the name of a folder, and says so in its error. If the pod's own name cannot be one, it returns nil.
func (l Layout) Of(p *Pod) (*Folders, error) {
	if err := names(p.UID, p.Namespace, p.Name); err != nil {
		return nil, err
	}
	podDir := filepath.Join(l.Root, "pods", p.UID)
	podLogs := filepath.Join(l.Logs, strings.Join([]string{p.Namespace, p.Name, p.UID}, "_"))
	f := &Folders{
		Logs: map[string]diskusage.Dir{},
		Own:  []diskusage.Dir{{Path: filepath.Join(podDir, "etc-hosts")}, {Path: podLogs, Mode: diskusage.Files}},
	}
	var errs []error
	for _, name := range once(p.Containers) {
		if err := names(name); err != nil {
			errs = append(errs, err)
			continue
		}
		// The termination logs, one a start, to which a container may write any amount.
		f.Own = append(f.Own, diskusage.Dir{Path: filepath.Join(podDir, "containers", name), Mode: diskusage.Files})
	}
	for _, name := range p.Running {
		if err := names(name); err != nil {
			errs = append(errs, err)
			continue
		}
		f.Logs[name] = diskusage.Dir{Path: filepath.Join(podLogs, name), Mode: diskusage.Files}
	}
	for _, name := range once(p.Containers) {
		if _, runs := f.Logs[name]; !runs && names(name) == nil {
			f.Own = append(f.Own, diskusage.Dir{Path: filepath.Join(podLogs, name), Mode: diskusage.Files})
		}
	}
	seen := map[string]bool{}
	for i := range p.Volumes {
		v := &p.Volumes[i]
		plugin := plugin(v)
		if plugin == "" || seen[v.Name] {
			continue
		}
		seen[v.Name] = true
		if err := names(v.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		f.Volumes = append(f.Volumes, Volume{
			Name: v.Name, Dir: diskusage.Dir{Path: filepath.Join(podDir, "volumes", plugin, v.Name)}, Ephemeral: ephemeral(v),
		})
	}
	return f, errors.Join(errs...)
}

// once returns each name once.
func once(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// Dirs yields all folders of the pod.
func (f *Folders) Dirs(yield func(diskusage.Dir) bool) {
	for _, v := range f.Volumes {
		if !yield(v.Dir) {
			return
		}
	}
	for _, d := range f.Logs {
		if !yield(d) {
			return
		}
	}
	for _, d := range f.Own {
		if !yield(d) {
			return
		}
	}
}

// names reports what cannot be the name of a folder.
func names(all ...string) error {
	var errs []error
	for _, name := range all {
		for _, problem := range content.IsPathSegmentName(name) {
			errs = append(errs, fmt.Errorf("name %.100q %s", name, problem))
		}
		if name == "" {
			errs = append(errs, errors.New("name is empty"))
		}
	}
	return errors.Join(errs...)
}

// plugin is the folder of the kubelet's plugin that has the volume's files; empty if the volume has no figures.
func plugin(v *v1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return "kubernetes.io~empty-dir"
	case v.ConfigMap != nil:
		return "kubernetes.io~configmap"
	case v.Secret != nil:
		return "kubernetes.io~secret"
	case v.DownwardAPI != nil:
		return "kubernetes.io~downward-api"
	case v.Projected != nil:
		return "kubernetes.io~projected"
	}
	return ""
}

// ephemeral reports whether the volume counts as local ephemeral storage, which the kubelet says of these alone.
func ephemeral(v *v1.Volume) bool {
	return v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault || v.ConfigMap != nil
}
