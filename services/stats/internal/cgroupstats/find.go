package cgroupstats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/microlet/microlet/services/internal/podcgroup"
)

// maxCgroups bounds the cgroups that are read: some containers of each of the pods of the largest node. What a
// container makes below its own cgroup is its own affair, and is not read at all.
const maxCgroups = 8192

// found is a cgroup that exists.
type found struct {
	name   string
	kind   Kind
	podUID string
	id     string
	// all: it is the cgroup of all pods.
	all bool
}

// find lists the cgroups of the pods below a mount point, as either driver names them. parent is cgroupRoot. What
// vanishes meanwhile is left out. More than limit are an error: no node has so many.
func find(mount, parent string, limit int) ([]found, error) {
	var all []found
	for _, systemd := range []bool{false, true} {
		root := podcgroup.ParseRoot(parent, systemd).Child(podcgroup.RootPart)
		for i, class := range podcgroup.Classes(root) {
			name, err := class.Path(systemd)
			if err != nil {
				break // no cgroup of this driver can have the name
			}
			pods, err := findPods(mount, name, systemd, limit)
			if errors.Is(err, fs.ErrNotExist) {
				if i == 0 {
					break // the pods are not with this driver
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, found{name: name, kind: Slice, all: i == 0})
			all = append(all, pods...)
			if len(all) > limit {
				return nil, fmt.Errorf("there are more than %d cgroups of pods", limit)
			}
		}
	}
	return all, nil
}

// findPods lists the pods' cgroups directly below one, and their containers'.
func findPods(mount, name string, systemd bool, limit int) ([]found, error) {
	dirs, err := folders(filepath.Join(mount, name))
	if err != nil {
		return nil, err
	}
	var all []found
	for _, dir := range dirs {
		uid, ok := podcgroup.UIDOf(dir, systemd)
		if !ok {
			continue
		}
		pod := path.Join(name, dir)
		all = append(all, found{name: pod, kind: PodKind, podUID: uid})
		containers, err := folders(filepath.Join(mount, pod))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, dir := range containers {
			if id, ok := containerOf(dir); ok {
				all = append(all, found{name: path.Join(pod, dir), kind: Container, podUID: uid, id: id})
			}
		}
		if len(all) > limit {
			break // the caller sees it
		}
	}
	return all, nil
}

// folders are the folders in one, by name.
func folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// idLength is that of the IDs that containerd and CRI-O give.
const idLength = 64

// containerOf is the ID of the container with a cgroup of this name in its pod's: "<id>" and "crio-<id>" with the
// driver cgroupfs, "cri-containerd-<id>.scope" and "crio-<id>.scope" with systemd's. CRI-O's monitor of a container,
// "crio-conmon-<id>", is none.
func containerOf(dir string) (string, bool) {
	dir = strings.TrimSuffix(dir, ".scope")
	prefix, id := "", dir
	if i := strings.LastIndexByte(dir, '-'); i >= 0 {
		prefix, id = dir[:i], dir[i+1:]
	}
	if len(id) != idLength || strings.HasSuffix(prefix, "conmon") {
		return "", false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return id, true
}
