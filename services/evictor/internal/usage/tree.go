package usage

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podcgroup"
	"github.com/microlet/microlet/services/internal/podutil"
)

// Memory reads the working set of a cgroup; see reading.Memory.
type Memory interface {
	WorkingSet(cgroup string) (int64, error)
}

// Tree finds the cgroups of pods, under the names that either driver gives them.
type Tree struct {
	// Mount is where the memory controller is mounted.
	Mount string
	// Root is cgroupRoot.
	Root   string
	Memory Memory
}

// AllPods returns the cgroup of all pods, below the mount; as cgroupfs names it if there is none yet.
func (t *Tree) AllPods() string {
	found := t.find(func(root podcgroup.Name) podcgroup.Name { return root })
	if len(found) == 0 {
		return ""
	}
	best, most := found[0], int64(-1)
	for _, path := range found {
		// What is left of another cgroup driver has next to nothing.
		if used, err := t.Memory.WorkingSet(path); err == nil && used > most {
			best, most = path, used
		}
	}
	return best
}

// Pod implements Cgroups.
func (t *Tree) Pod(p *nodepods.Pod) (*statsapi.PodStats, error) {
	found := t.find(func(root podcgroup.Name) podcgroup.Name {
		switch podutil.QOSClass(p.Pod) {
		case v1.PodQOSBurstable:
			root = root.Child(podcgroup.BurstablePart)
		case v1.PodQOSBestEffort:
			root = root.Child(podcgroup.BestEffortPart)
		}
		return root.Child(podcgroup.PodPrefix + string(p.UID))
	})
	if len(found) == 0 {
		return nil, fmt.Errorf("the cgroup of pod %s/%s: it has no name", p.Namespace, p.Name)
	}
	at := found[0]
	used, err := t.Memory.WorkingSet(at)
	if err != nil {
		return nil, fmt.Errorf("read the cgroup of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	stats := &statsapi.PodStats{Memory: memoryOf(used)}
	if tasks, err := t.tasks(at); err == nil { // without them its memory counts all the same
		stats.ProcessStats = &statsapi.ProcessStats{ProcessCount: &tasks}
	}
	entries, err := os.ReadDir(filepath.Join(t.Mount, at))
	if err != nil {
		return nil, fmt.Errorf("list the cgroup of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	for c := range podutil.Containers(&p.Spec) {
		id := runningID(p, c.Name)
		if id == "" {
			continue
		}
		for _, e := range entries {
			if !e.IsDir() || !strings.Contains(e.Name(), id) {
				continue
			}
			if used, err := t.Memory.WorkingSet(filepath.Join(at, e.Name())); err == nil {
				stats.Containers = append(stats.Containers, statsapi.ContainerStats{Name: c.Name, Memory: memoryOf(used)})
			}
		}
	}
	return stats, nil
}

// runningID returns the ID of the container of that name; empty if it does not run.
func runningID(p *nodepods.Pod, name string) string {
	for i := range p.Containers {
		if c := &p.Containers[i]; c.Name == name && c.IsRunning() {
			return c.ID
		}
	}
	return ""
}

func memoryOf(used int64) *statsapi.MemoryStats {
	return &statsapi.MemoryStats{WorkingSetBytes: new(uint64(used))}
}

// find returns the paths that exist of those that a cgroup has with either driver, or both if none does.
func (t *Tree) find(below func(podcgroup.Name) podcgroup.Name) (paths []string) {
	var all []string
	for _, systemd := range []bool{false, true} {
		root := podcgroup.ParseRoot(t.Root, systemd).Child(podcgroup.RootPart)
		path, err := below(root).Path(systemd)
		if err != nil {
			continue
		}
		all = append(all, path)
		if _, err := os.Stat(filepath.Join(t.Mount, path)); err == nil {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return all
	}
	return paths
}

// tasks counts the processes and threads of a cgroup and of all below it. Each thread has an ID of those that run
// short, and a pod can have thousands of them in one process.
func (t *Tree) tasks(cgroup string) (n uint64, err error) {
	err = filepath.WalkDir(filepath.Join(t.Mount, cgroup), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has vanished meanwhile
		}
		if err != nil || !e.IsDir() {
			return err
		}
		f, err := os.Open(filepath.Join(path, "cgroup.threads"))
		if errors.Is(err, fs.ErrNotExist) {
			f, err = os.Open(filepath.Join(path, "tasks")) // with cgroup v1
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fs.SkipDir
		}
		if err != nil {
			return err
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			n++
		}
		return nil
	})
	return n, err
}
