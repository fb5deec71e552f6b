package rank

import (
	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// parts are what of a pod is on a filesystem.
type parts struct{ layers, logs, volumes bool }

// diskParts says what is on the filesystem of a signal.
func diskParts(s signal.Signal, l threshold.Layout) parts {
	if !l.ImageFs {
		return parts{layers: true, logs: true, volumes: true}
	}
	switch s {
	case signal.ImageFsAvailable, signal.ImageFsInodesFree:
		return parts{layers: !l.SplitContainerFs}
	case signal.ContainerFsAvailable, signal.ContainerFsInodesFree:
		if !l.SplitContainerFs {
			return parts{layers: true}
		}
	}
	return parts{layers: l.SplitContainerFs, logs: true, volumes: true}
}

// diskUsage adds up what of a pod is on the filesystem, in bytes or inodes.
func diskUsage(p *v1.Pod, f *statsapi.PodStats, what parts, of v1.ResourceName) int64 {
	var sum int64
	for i := range f.Containers {
		if what.layers {
			sum += taken(f.Containers[i].Rootfs, of)
		}
		if what.logs {
			sum += taken(f.Containers[i].Logs, of)
		}
	}
	if !what.volumes {
		return sum
	}
	local := map[string]bool{}
	for i := range p.Spec.Volumes {
		local[p.Spec.Volumes[i].Name] = isLocal(&p.Spec.Volumes[i])
	}
	for i := range f.VolumeStats {
		if name := f.VolumeStats[i].Name; local[name] {
			local[name] = false // each volume once
			sum += taken(&f.VolumeStats[i].FsStats, of)
		}
	}
	if what.layers && what.logs {
		// The whole has what is of no container that runs too, such as the layers and logs of init containers.
		sum = max(sum, taken(f.EphemeralStorage, of))
	}
	return sum
}

// taken is what a figure says, and 0 if it is not known.
func taken(fs *statsapi.FsStats, of v1.ResourceName) int64 {
	switch {
	case fs == nil:
	case of == signal.Inodes && fs.InodesUsed != nil:
		return int64(*fs.InodesUsed)
	case of != signal.Inodes && fs.UsedBytes != nil:
		return int64(*fs.UsedBytes)
	}
	return 0
}

// isLocal says that a volume takes space of the node, as the kubelet counts it.
func isLocal(v *v1.Volume) bool {
	return v.HostPath != nil || v.GitRepo != nil || v.ConfigMap != nil ||
		v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault
}
