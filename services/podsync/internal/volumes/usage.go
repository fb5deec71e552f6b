package volumes

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// ErrNoVolume is the error of a volume that a pod does not have.
var ErrNoVolume = errors.New("the pod has no such volume of a claim or of a CSI driver")

// Usage returns how full a volume of a claim or of a CSI driver is. As with the kubelet, a hostPath is not measured.
func (m *Manager) Usage(ctx context.Context, uid types.UID, name string) (csivolume.Usage, error) {
	if validUID(uid) != nil || len(validation.IsDNS1123Label(name)) > 0 {
		return csivolume.Usage{}, ErrNoVolume
	}
	pod := m.podDir(uid)
	s := &Spec{Pod: &v1.Pod{}, Volume: &v1.Volume{Name: name}, PluginsDir: filepath.Join(pod, "plugins")}
	s.Pod.UID = uid
	held, ok := m.claims.look(s)
	if !ok {
		held, ok = m.inline.look(s)
	}
	if !ok {
		return csivolume.Usage{}, ErrNoVolume
	}
	if held.Mounted.Device != "" {
		return m.opts.CSI.BlockUsage(ctx, uid, held.PV)
	}
	path, volumes := held.Mounted.HostPath, filepath.Join(pod, "volumes")
	switch dir := filepath.Join(volumes, csivolume.Plugin); {
	case filepath.Dir(filepath.Dir(path)) == dir:
		return m.opts.CSI.Usage(ctx, uid, filepath.Base(filepath.Dir(path)))
	case strings.HasPrefix(path, volumes+"/"):
		return measure.Do(ctx, m.opts.Foreign, path, usageCall{Path: path})
	}
	return csivolume.Usage{}, csivolume.ErrNotMeasured
}

// usageCall asks how full the file system at a path is.
type usageCall struct{ Path string }

func (c *usageCall) do() (csivolume.Usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(c.Path, &s); err != nil {
		return csivolume.Usage{}, err
	}
	block := uint64(max(s.Bsize, 0))
	return csivolume.Usage{
		Capacity: s.Blocks * block, Available: s.Bavail * block, Used: (s.Blocks - min(s.Bfree, s.Blocks)) * block,
		Inodes: s.Files, InodesFree: s.Ffree, InodesUsed: s.Files - min(s.Ffree, s.Files),
	}, nil
}
