package volumes

import (
	"fmt"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

const (
	// maxFiles bounds the size of all files from the API that a pod has: no cgroup is charged for what podsync writes.
	maxFiles = 64 << 20
	// maxFreeFiles bounds those in memory of a pod without a memory limit. It is 16 objects of the largest size that
	// the API takes.
	maxFreeFiles = 16 << 20
	// filePage is the size of a folder. That of a file is a multiple of it.
	filePage = 4 << 10
	// maxMounts bounds the volumes of a pod and the paths in them that its containers mount. Most of them are mounts in
	// the node's own namespace, which has at most 100,000 (fs.mount-max) for all pods, and of which each container that
	// starts gets a copy.
	maxMounts = 512
)

// checkNumber returns an error for a pod that has more volumes and paths in them than a pod may have.
func checkNumber(p *v1.Pod) error {
	paths := 0
	for c := range podutil.Containers(&p.Spec) {
		for i := range c.VolumeMounts {
			if m := &c.VolumeMounts[i]; m.SubPath != "" || m.SubPathExpr != "" {
				paths++
			}
		}
	}
	volumes := len(p.Spec.Volumes)
	if volumes == 0 || volumes+paths <= maxMounts {
		return nil
	}
	return &Error{Volume: p.Spec.Volumes[0].Name, Err: fmt.Errorf("the pod has %d volumes, and mounts %d paths in them "+
		"(subPath): use at most %d of both together", volumes, paths, maxMounts)}
}

// taken has the sizes of the files from the API, by pod and volume.
type taken struct {
	mu   sync.Mutex
	pods map[types.UID]map[string]volumeSize
}

// volumeSize is the size of the files of a volume.
type volumeSize struct {
	bytes    int64
	inMemory bool
}

// set notes the size of a volume, unless its pod would have more than it may.
func (t *taken) set(p *v1.Pod, volume string, size volumeSize) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	all, inMemory := size.bytes, int64(0)
	if size.inMemory {
		inMemory = size.bytes
	}
	for name, other := range t.pods[p.UID] {
		if name == volume {
			continue
		}
		all += other.bytes
		if other.inMemory {
			inMemory += other.bytes
		}
	}
	if all > maxFiles {
		return fmt.Errorf("all such volumes of the pod take %d then, and may take %d", all, maxFiles)
	}
	switch limit := memoryLimit(p); {
	case limit > 0 && inMemory > limit:
		return fmt.Errorf("those of the pod in memory take %d then, more than the pod's memory limit of %d",
			inMemory, limit)
	case limit == 0 && inMemory > maxFreeFiles:
		return fmt.Errorf("those of the pod in memory take %d then, and may take %d in a pod without a memory limit",
			inMemory, maxFreeFiles)
	}
	if t.pods[p.UID] == nil {
		t.pods[p.UID] = map[string]volumeSize{}
	}
	t.pods[p.UID][volume] = size
	return nil
}

// of returns the size of a volume; put brings it back.
func (t *taken) of(pod types.UID, volume string) volumeSize {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[pod][volume]
}

func (t *taken) put(pod types.UID, volume string, size volumeSize) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sizes := t.pods[pod]; sizes != nil {
		sizes[volume] = size
	}
}

func (t *taken) forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, pod)
}

// memoryLimit is the pod's as a whole; 0 is none.
func memoryLimit(p *v1.Pod) int64 {
	limit, ok := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[v1.ResourceMemory]
	if !ok || !memoryLimited(p) {
		return 0
	}
	return limit.Value()
}

// foldersOf is the size of the folders above a file, which may have no other file.
func foldersOf(path string) int64 { return filePage * int64(strings.Count(path, "/")) }

// addMountPoints counts the folders in the volume on which containers mount others.
func (g *gathering) addMountPoints(p *v1.Pod, volume string) error {
	for c := range podutil.AllContainers(&p.Spec) {
		for path := range nested(c.VolumeMounts, volume) {
			g.bytes += foldersOf(path) + filePage
		}
	}
	if err := g.fits(g.bytes); err != nil {
		return fmt.Errorf("%w: it takes %d bytes with the folders on which containers mount other volumes, %w: mount "+
			"fewer there", errTooLarge, g.bytes, err)
	}
	return nil
}

// gathering are the files of a volume while they are gathered.
type gathering struct {
	files map[string]file
	bytes int64
	// fits is an error if the volume may not take so much.
	fits func(bytes int64) error
}

// put adds a file. A later one wins a path.
func (g *gathering) put(path string, f file) error {
	bytes := g.bytes + f.takes()
	if before, ok := g.files[path]; ok {
		bytes -= before.takes()
	} else {
		bytes += foldersOf(path)
	}
	if err := g.fits(bytes); err != nil {
		return fmt.Errorf("%w: it takes %d bytes with %d files, %w: name fewer or smaller ones", errTooLarge, bytes,
			len(g.files)+1, err)
	}
	g.files[path], g.bytes = f, bytes
	return nil
}
