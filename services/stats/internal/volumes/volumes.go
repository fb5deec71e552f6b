// Package volumes reports what the volumes, logs, hosts files and termination logs of pods take.
//
// Package podfolders says which folders they are. Volumes of claims and of CSI drivers are asked for elsewhere. Four
// things differ from the kubelet. It counts neither termination logs nor the logs of containers that have ended. It
// measures a configMap and its kin once, and logs again for each summary; here all are measured with
// volumeStatsAggPeriod. A folder of which a part cannot be read has the sum of the rest. And volumes are measured at
// most at the rate of a budget, so that on a node with millions of files their figures are older.
package volumes

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/diskusage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/podfolders"
	"github.com/microlet/microlet/services/internal/run"
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
	Pods func() map[string]*nodepods.Pod
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
	known map[string]*podfolders.Folders
}

// measurer is the part of diskusage.Measurer that is used.
type measurer interface {
	Run(ctx context.Context) error
	Track(dirs []diskusage.Dir) error
	Measurement(d diskusage.Dir) (diskusage.Measurement, bool)
}

var _ summary.Folders = (*Volumes)(nil)

// New returns Volumes that know of no pod before Run.
func New(o Options) *Volumes {
	disk := diskusage.New(diskusage.Config{
		Period: max(o.Period, 0), Log: o.Log, Metrics: diskMetrics(o.Metrics), // 0 is the default
	})
	oldestMetric(o.Metrics, disk.Oldest)
	return &Volumes{o: o, disk: disk}
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
			for d := range p.Dirs {
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

// list says what is measured of each pod.
func (v *Volumes) list(all map[string]*nodepods.Pod) map[string]*podfolders.Folders {
	layout := podfolders.Layout{Root: v.o.RootDir, Logs: v.o.LogsDir}.Resolved()
	known := make(map[string]*podfolders.Folders, len(all))
	for uid, p := range all {
		of := podfolders.Pod{UID: uid, Namespace: p.Namespace, Name: p.Name}
		for _, c := range p.Containers {
			of.Containers = append(of.Containers, c.Name)
			if c.IsRunning() {
				of.Running = append(of.Running, c.Name)
			}
		}
		if v.o.Period >= 0 {
			of.Volumes = p.Spec.Volumes
		}
		folders, err := layout.Of(&of)
		if err != nil {
			v.o.Book.Add(readerrors.Pod, "pod "+uid, err)
		}
		if folders != nil {
			known[uid] = folders
		}
	}
	return known
}

// pod returns what is measured of a pod, and nothing of one that is not known.
func (v *Volumes) pod(uid string) *podfolders.Folders {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.known[uid]; p != nil {
		return p
	}
	return &podfolders.Folders{}
}

// Volumes implements summary.Folders.
func (v *Volumes) Volumes(podUID string) []summary.Volume {
	all := v.o.Claims(podUID)
	for _, vol := range v.pod(podUID).Volumes {
		if f, ok := v.disk.Measurement(vol.Dir); ok {
			all = append(all, summary.Volume{
				VolumeStats: statsapi.VolumeStats{Name: vol.Name, FsStats: fsStats(&f)}, Ephemeral: vol.Ephemeral,
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
	d, ok := v.pod(podUID).Logs[container]
	if !ok {
		return summary.Folder{}, false
	}
	return v.sum(d)
}

// Own implements summary.Folders.
func (v *Volumes) Own(podUID string) (summary.Folder, bool) { return v.sum(v.pod(podUID).Own...) }

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
