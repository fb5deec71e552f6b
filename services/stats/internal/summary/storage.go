package summary

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

// rootFs is the file system of the kubelet's root folder.
func (b *builder) rootFs() *statsapi.FsStats {
	u := b.RootFs
	if u == nil {
		return nil
	}
	fs := onFs(u)
	used, inodes := u.Capacity-min(u.Free, u.Capacity), u.Inodes-min(u.InodesFree, u.Inodes)
	fs.UsedBytes, fs.InodesUsed = &used, &inodes
	return fs
}

// onFs is what the file system has; nil is one that did not answer.
func onFs(u *fsusage.Usage) *statsapi.FsStats {
	if u == nil {
		return &statsapi.FsStats{}
	}
	return &statsapi.FsStats{
		Time: metav1.NewTime(u.Time), AvailableBytes: &u.Available, CapacityBytes: &u.Capacity,
		InodesFree: &u.InodesFree, Inodes: &u.Inodes,
	}
}

func (b *builder) runtime() *statsapi.RuntimeStats {
	if b.Usage == nil || b.Usage.Images == nil {
		return nil
	}
	images := b.taken(*b.Usage.Images)
	// CRI's second file system, that of containers, is not reported apart by a kubelet that measures by CRI.
	return &statsapi.RuntimeStats{ImageFs: images, ContainerFs: images}
}

// taken is what a layer takes, on its file system.
func (b *builder) taken(l cri.Layer) *statsapi.FsStats {
	fs := &statsapi.FsStats{}
	if u, ok := b.Filesystems[l.Mountpoint]; ok {
		fs = onFs(&u)
	}
	fs.Time, fs.UsedBytes, fs.InodesUsed = metav1.NewTime(l.Time), l.Used, l.Inodes
	return fs
}

func (b *builder) layer(id string) *statsapi.FsStats {
	if b.Usage == nil {
		return nil
	}
	l, ok := b.Usage.Layers[id]
	if !ok {
		return nil
	}
	return b.taken(l)
}

func (b *builder) logs(podUID, container string) *statsapi.FsStats {
	if b.Folders == nil {
		return nil
	}
	f, ok := b.Folders.Logs(podUID, container)
	if !ok {
		return nil
	}
	fs := onFs(b.RootFs)
	fs.Time, fs.UsedBytes, fs.InodesUsed = metav1.NewTime(f.Time), &f.Bytes, &f.Inodes
	return fs
}

// storage adds the pod's volumes, and what all that it has on the node's disk takes together. Containers that have
// ended count too, as far as the runtime says what they take.
func (b *builder) storage(uid string, p *statsapi.PodStats) {
	total := onFs(b.RootFs)
	if total.Time.IsZero() {
		total.Time = metav1.NewTime(b.Snapshot.ReadAt)
	}
	whole := true
	for _, c := range p.Containers {
		if c.Rootfs == nil {
			whole = false
			continue
		}
		add(total, c.Rootfs)
		if c.Logs != nil {
			add(total, c.Logs)
		}
	}
	for _, c := range b.known[uid].Containers {
		if layer := b.layer(c.ID); layer != nil && !c.IsRunning() {
			add(total, layer) // what an init container has written stays for as long as the pod does
		}
	}
	if b.Folders != nil {
		for _, v := range b.Folders.Volumes(uid) {
			p.VolumeStats = append(p.VolumeStats, v.VolumeStats)
			if v.Ephemeral {
				add(total, &v.FsStats)
			}
		}
		if own, ok := b.Folders.Own(uid); ok {
			add(total, &statsapi.FsStats{Time: metav1.NewTime(own.Time), UsedBytes: &own.Bytes, InodesUsed: &own.Inodes})
		}
		slices.SortFunc(p.VolumeStats, func(a, b statsapi.VolumeStats) int { return strings.Compare(a.Name, b.Name) })
	}
	if !whole { // an evictor would take a part of the sum for all of it
		total.UsedBytes, total.InodesUsed = nil, nil
	}
	p.EphemeralStorage = total
}

// add counts one more part of the whole. The time of the whole is that of its newest part.
func add(whole, part *statsapi.FsStats) {
	whole.UsedBytes, whole.InodesUsed = sum(whole.UsedBytes, part.UsedBytes), sum(whole.InodesUsed, part.InodesUsed)
	if whole.Time.Before(&part.Time) {
		whole.Time = part.Time
	}
}

// sum of two numbers, of which either may be unknown.
func sum(a, b *uint64) *uint64 {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	total := *a + *b
	return &total
}

func rlimit(t cgroupstats.Tasks) *statsapi.RlimitStats {
	if t.Time.Equal(time.Time{}) {
		return nil
	}
	return &statsapi.RlimitStats{Time: metav1.NewTime(t.Time), MaxPID: t.Limit, NumOfRunningProcesses: t.Running}
}
