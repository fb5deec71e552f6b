// Package volumes reports what the volumes, logs, hosts files and termination logs of pods take.
//
// Which volumes have figures, and which of them count as ephemeral storage, is the kubelet's choice: emptyDir,
// configMap, secret, downwardAPI and projected have some, hostPath and images have none. Those of claims and of CSI
// drivers are asked for elsewhere. Four things differ from the kubelet. It does not count termination logs. It measures
// a configMap and its kin once, and logs anew for each summary; here all are measured with volumeStatsAggPeriod. A
// folder of which a part cannot be read has the sum of the rest. And volumes are measured at most at the rate of a
// budget, so that on a node with millions of files their figures are older.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/stats/internal/diskusage"
	"github.com/microlet/microlet/services/stats/internal/pods"
	"github.com/microlet/microlet/services/stats/internal/readerrors"
	"github.com/microlet/microlet/services/stats/internal/summary"
)

// look is how often the pods are looked at for new volumes and containers.
const look = 5 * time.Second

// Options of Volumes. All fields are required.
type Options struct {
	// RootDir is the kubelet's root folder, and LogsDir its podLogsDir.
	RootDir, LogsDir string
	// Period is volumeStatsAggPeriod. If it is negative, no volumes are measured, but logs are.
	Period time.Duration
	// Pods returns the node's pods by their UID.
	Pods func() map[string]*pods.Pod
	// Claims returns a pod's volumes of claims and of CSI drivers.
	Claims  func(podUID string) []summary.Volume
	Book    *readerrors.Recorder
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Volumes measures what pods have on the node's disks. Its methods may be called by several goroutines.
type Volumes struct {
	o    Options
	disk measurer

	mu    sync.Mutex
	known map[string]*pod
}

// measurer is what of disk.Measurer is used.
type measurer interface {
	Run(ctx context.Context) error
	Track(dirs []diskusage.Dir) error
	Measurement(d diskusage.Dir) (diskusage.Measurement, bool)
}

var _ summary.Folders = (*Volumes)(nil)

// pod has what is measured of one.
type pod struct {
	volumes []volume
	logs    map[string]diskusage.Dir
	own     []diskusage.Dir
}

type volume struct {
	name      string
	dir       diskusage.Dir
	ephemeral bool
}

// New returns Volumes that know of no pod before Run.
func New(o Options) *Volumes {
	return &Volumes{o: o, disk: diskusage.New(diskusage.Config{
		Period: max(o.Period, 0), Log: o.Log, Registerer: o.Metrics, // 0 is the default
	})}
}

// Run measures until the context ends; that is no error.
func (v *Volumes) Run(ctx context.Context) error {
	group, _ := run.New(ctx)
	group.Go("disk", v.disk.Run)
	group.Go("pods", v.follow)
	return group.Wait()
}

// follow has what the pods have measured.
func (v *Volumes) follow(ctx context.Context) error {
	tracked := map[diskusage.Dir]bool{}
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		known := v.list(v.o.Pods())
		v.mu.Lock()
		v.known = known
		v.mu.Unlock()
		dirs := map[diskusage.Dir]bool{}
		for _, p := range known {
			for d := range p.dirs {
				dirs[d] = true
			}
		}
		if !maps.Equal(dirs, tracked) {
			if err := v.disk.Track(slices.Collect(maps.Keys(dirs))); err != nil {
				v.o.Book.Add(readerrors.Pod, "folders", err)
			}
			tracked = dirs
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// dirs yields all that is measured of the pod.
func (p *pod) dirs(yield func(diskusage.Dir) bool) {
	for _, vol := range p.volumes {
		if !yield(vol.dir) {
			return
		}
	}
	for _, d := range p.logs {
		if !yield(d) {
			return
		}
	}
	for _, d := range p.own {
		if !yield(d) {
			return
		}
	}
}

// list says what is measured of each pod.
func (v *Volumes) list(all map[string]*pods.Pod) map[string]*pod {
	root, logs := resolved(v.o.RootDir), resolved(v.o.LogsDir)
	known := make(map[string]*pod, len(all))
	for uid, p := range all {
		if err := names(uid, p.Namespace, p.Name); err != nil {
			v.o.Book.Add(readerrors.Pod, "pod "+uid, err)
			continue
		}
		known[uid] = v.folders(root, logs, uid, p)
	}
	return known
}

// resolved is the folder without links on the way, since a walk follows none. Only root may put them there.
func resolved(dir string) string {
	if path, err := filepath.EvalSymlinks(dir); err == nil {
		return path
	}
	return filepath.Clean(dir)
}

// names reports what cannot be the name of a folder: the bus could name any path otherwise.
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

// folders are those of one pod, in the kubelet's layout.
func (v *Volumes) folders(root, logs, uid string, p *pods.Pod) *pod {
	podDir := filepath.Join(root, "pods", uid)
	podLogs := filepath.Join(logs, strings.Join([]string{p.Namespace, p.Name, uid}, "_"))
	known := &pod{
		logs: map[string]diskusage.Dir{},
		own:  []diskusage.Dir{{Path: filepath.Join(podDir, "etc-hosts")}, {Path: podLogs, Mode: diskusage.Files}},
	}
	for _, c := range p.Containers {
		if err := names(c.Name); err != nil {
			v.o.Book.Add(readerrors.Pod, "pod "+uid, err)
			continue
		}
		// The termination logs, one a start, to which a container may write any amount.
		known.own = append(known.own, diskusage.Dir{
			Path: filepath.Join(podDir, "containers", c.Name), Mode: diskusage.Files,
		})
		if !c.Running {
			continue
		}
		known.logs[c.Name] = diskusage.Dir{Path: filepath.Join(podLogs, c.Name), Mode: diskusage.Files}
	}
	for i := range p.Volumes {
		vol := &p.Volumes[i]
		plugin := plugin(vol)
		if plugin == "" || v.o.Period < 0 {
			continue
		}
		if err := names(vol.Name); err != nil {
			v.o.Book.Add(readerrors.Pod, "pod "+uid, err)
			continue
		}
		known.volumes = append(known.volumes, volume{
			name: vol.Name, dir: diskusage.Dir{Path: filepath.Join(podDir, "volumes", plugin, vol.Name)},
			ephemeral: ephemeral(vol),
		})
	}
	return known
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

// pod returns what is measured of a pod, and nothing of one that is not known.
func (v *Volumes) pod(uid string) *pod {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.known[uid]; p != nil {
		return p
	}
	return &pod{}
}

// Volumes implements summary.Folders.
func (v *Volumes) Volumes(podUID string) []summary.Volume {
	all := v.o.Claims(podUID)
	for _, vol := range v.pod(podUID).volumes {
		if f, ok := v.disk.Measurement(vol.dir); ok {
			all = append(all, summary.Volume{
				VolumeStats: statsapi.VolumeStats{Name: vol.name, FsStats: fsStats(&f)}, Ephemeral: vol.ephemeral,
				Late: f.Late,
			})
		}
	}
	return all
}

func fsStats(f *diskusage.Measurement) statsapi.FsStats {
	return statsapi.FsStats{
		Time: metav1.NewTime(f.Time), AvailableBytes: &f.AvailableBytes, CapacityBytes: &f.CapacityBytes,
		UsedBytes: &f.UsedBytes, InodesFree: &f.InodesFree, Inodes: &f.Inodes, InodesUsed: &f.InodesUsed,
	}
}

// Logs implements summary.Folders.
func (v *Volumes) Logs(podUID, container string) (summary.Folder, bool) {
	d, ok := v.pod(podUID).logs[container]
	if !ok {
		return summary.Folder{}, false
	}
	return v.sum(d)
}

// Own implements summary.Folders.
func (v *Volumes) Own(podUID string) (summary.Folder, bool) { return v.sum(v.pod(podUID).own...) }

// sum adds up those that have figures. Its time is that of the newest, and it is late if one of them is.
func (v *Volumes) sum(dirs ...diskusage.Dir) (total summary.Folder, ok bool) {
	for _, d := range dirs {
		f, has := v.disk.Measurement(d)
		if !has {
			continue
		}
		ok = true
		total.Bytes += f.UsedBytes
		total.Inodes += f.InodesUsed
		total.Late = total.Late || f.Late
		if f.Time.After(total.Time) {
			total.Time = f.Time
		}
	}
	return total, ok
}
