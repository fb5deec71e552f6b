package stats

import (
	"context"
	"maps"
	"path/filepath"
	"time"

	libcgroups "github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/formername"
	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/stats/internal/cachedvalue"
	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/claims"
	"github.com/microlet/microlet/services/stats/internal/cri"
	"github.com/microlet/microlet/services/stats/internal/readerrors"
	"github.com/microlet/microlet/services/stats/internal/server"
	"github.com/microlet/microlet/services/stats/internal/volumes"
)

const (
	// readTimeout bounds one look at all cgroups, or one call of the runtime.
	readTimeout = 30 * time.Second
	// patience is how long a reader waits for new figures. nodeapi's readers wait ten seconds, as metrics-server does.
	patience = 5 * time.Second
	// runtimePatience is how long a reader then waits for the runtime to list containers that it has not listed yet.
	runtimePatience = 2 * time.Second
	// stale is how old the figures may be of which an answer is made: as long as the kubelet's cAdvisor keeps them.
	stale = 2 * time.Minute
)

// Run runs stats until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, runtime, err := service.NewWithCRI(cfg.Service, role.Stats)
	if err != nil {
		return err
	}
	defer runtime.Close()
	book := readerrors.NewRecorder(s.Log, s.Metrics)
	all := readable(nodepods.Watch(s.Bus, s.Log, nil))
	client := cri.New(runtime, crilist.Options{Log: s.Log, Metrics: s.Metrics}, book)
	usage, created := runtimeUsage(s, client)
	podStats, metrics := sharePodStats(&cfg, s, client)
	cgroups, err := shareCgroups(&cfg, s, all, podStats, book)
	if err != nil {
		return err
	}
	podsync, err := s.Dial(ctx, role.Podsync)
	if err != nil {
		return err
	}
	defer podsync.Close()
	folders := measureVolumes(&cfg, s, podsyncv1.NewVolumeStatsServiceClient(formername.Conn(podsync)), all, book)
	statsv1.RegisterStatsServiceServer(s.GRPC, server.New(server.Options{
		NodeName: cfg.Service.NodeName, Began: time.Now(), Age: cfg.Kubelet.Node.HousekeepingInterval.Duration,
		Cgroups: cgroups, Usage: usage, Created: created, PodStats: podStats, Metrics: metrics, Pods: all,
		HugePages: cfg.Kubelet.FeatureEnabled("HugepageAwareEviction"),
		RootDir:   cfg.Kubelet.Node.RootDir, Filesystems: &fsusage.Prober{}, Folders: folders, Log: s.Log,
	}))
	s.Offer(&statsv1.StatsService_ServiceDesc, role.NodeAPI, role.Evictor, role.Up)
	s.Go("cgroups", cgroups.Run)
	s.Go("usage", usage.Run)
	s.Go("created", created.Run)
	if podStats != nil {
		s.Go("pod stats", podStats.Run)
		s.Go("pod metrics", metrics.Run)
	}
	s.Ready("measuring")
	return s.Run(ctx)
}

// readable returns the pods that can be read. The others have no figures.
func readable(all *nodepods.View) func() map[string]*nodepods.Pod {
	return func() map[string]*nodepods.Pod {
		pods := all.All()
		maps.DeleteFunc(pods, func(_ string, p *nodepods.Pod) bool { return p.Err != nil })
		return pods
	}
}

// measureVolumes has s measure what pods have on disks and in the volumes of claims.
func measureVolumes(cfg *Config, s *service.Service, podsync claims.Client, all func() map[string]*nodepods.Pod,
	book *readerrors.Recorder) *volumes.Volumes {
	k := cfg.Kubelet
	period := k.Kubelet.VolumeStatsAggPeriod.Duration
	claimed := claims.New(claims.Options{Period: period, Podsync: podsync, Pods: all, Log: s.Log})
	s.Metrics.MustRegister(claimed)
	folders := volumes.New(volumes.Options{
		RootDir: k.Node.RootDir, LogsDir: k.Kubelet.PodLogsDir, Period: period, Pods: all, Claims: claimed.Volumes,
		Book: book, Log: s.Log, Metrics: s.Metrics,
	})
	s.Go("folders", folders.Run)
	s.Go("claims", claimed.Run)
	return folders
}

// shareCgroups shares what is measured here, and puts them on the bus.
func shareCgroups(cfg *Config, s *service.Service, all func() map[string]*nodepods.Pod,
	podStats *cachedvalue.Value[*cri.PodStats], book *readerrors.Recorder,
) (*cachedvalue.Value[*cgroupstats.Snapshot], error) {
	k := cfg.Kubelet
	podCgroups := func() bool { // until the runtime has said that it measures pods
		if podStats == nil {
			return true
		}
		last, ok := podStats.Last()
		return !ok || !last.Value.Supported
	}
	measurer, err := cgroupstats.New(cgroupstats.Options{
		CgroupRoot: k.Kubelet.CgroupRoot, System: systemCgroups(cfg),
		Except: []string{filepath.Join(k.Node.RootDir, "pods"), "/run/containerd", "/run/containers", "/run/crio",
			"/run/netns"},
		PodCgroups: podCgroups, Pods: all, Book: book,
	})
	if err != nil {
		return nil, err
	}
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "microlet_stats_take_duration_seconds",
		Help:    "How long stats took to read all cgroups.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	})
	count := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "microlet_stats_cgroups", Help: "Cgroups that stats read last.",
	})
	s.Metrics.MustRegister(took, count)
	key := s.Bus.Own(subject.Stats)
	said := &statsv1.SummaryTaken{}
	return cachedvalue.New(cachedvalue.Options[*cgroupstats.Snapshot]{
		What: "the cgroups", Read: measurer.Read, Timeout: readTimeout, Patience: patience, Stale: stale,
		Idle: cfg.IdlePeriod, Turned: s.Pulse.Turn, Log: s.Log,
		OnRead: func(a cachedvalue.Answer[*cgroupstats.Snapshot], err error) {
			took.Observe(time.Since(a.ReadAt).Seconds())
			next := &statsv1.SummaryTaken{Taken: said.GetTaken(), Generation: said.GetGeneration()}
			if err != nil {
				next.Error = err.Error()
			} else {
				count.Set(float64(len(a.Value.Cgroups)))
				next.Taken, next.Generation = timestamppb.New(a.ReadAt), said.GetGeneration()+1
			}
			said = next
			key.Put(subject.StatsSummary, next)
			key.Complete() // it is the bucket's only key
		},
	}), nil
}

// runtimeUsage shares what the runtime reports of layers, images and times.
func runtimeUsage(s *service.Service, client *cri.Client) (*cachedvalue.Value[*cri.Usage],
	*cachedvalue.Value[cri.Created]) {
	usage := cachedvalue.New(cachedvalue.Options[*cri.Usage]{
		What: "the runtime's figures", Read: client.ReadUsage, Timeout: readTimeout, Patience: patience,
		Stale: stale, Log: s.Log,
	})
	created := cachedvalue.New(cachedvalue.Options[cri.Created]{
		What: "the runtime's containers", Read: client.ReadCreated, Timeout: readTimeout, Patience: runtimePatience,
		Stale: stale, Log: s.Log,
	})
	return usage, created
}

// sharePodStats shares what the runtime measures of pods and containers, if it is to (KEP-2371); nil otherwise.
func sharePodStats(cfg *Config, s *service.Service, client *cri.Client) (
	*cachedvalue.Value[*cri.PodStats], *cachedvalue.Value[*cri.Metrics],
) {
	if !cfg.Kubelet.FeatureEnabled("PodAndContainerStatsFromCRI") {
		return nil, nil
	}
	podStats := cachedvalue.New(cachedvalue.Options[*cri.PodStats]{
		What: "the runtime's figures of pods", Read: cri.NewPodClient(client).Read, Timeout: readTimeout,
		Patience: patience, Stale: stale, Log: s.Log,
	})
	metrics := cachedvalue.New(cachedvalue.Options[*cri.Metrics]{
		What: "the runtime's metrics of pods", Read: client.ReadMetrics, Timeout: readTimeout,
		Patience: patience, Stale: stale, Log: s.Log,
	})
	return podStats, metrics
}

// systemCgroups are the cgroups of the system's parts: those that are configured, this process's own for the node
// agent, and that of all pods.
func systemCgroups(cfg *Config) map[string]string {
	all := map[string]string{
		statsapi.SystemContainerKubelet: cfg.Kubelet.Kubelet.KubeletCgroups,
		statsapi.SystemContainerRuntime: cfg.Kubelet.Node.RuntimeCgroups,
		statsapi.SystemContainerMisc:    cfg.Kubelet.Kubelet.SystemCgroups,
	}
	if all[statsapi.SystemContainerKubelet] == "" {
		all[statsapi.SystemContainerKubelet] = ownCgroup()
	}
	for part, name := range all {
		if name == "" {
			delete(all, part)
			continue
		}
		all[part] = filepath.Clean(name)
	}
	return all
}

// ownCgroup is the cgroup of the node agent; empty if it cannot be reported.
func ownCgroup() string {
	own, err := libcgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	if libcgroups.IsCgroup2UnifiedMode() {
		return peer.InstanceCgroup(own[""]) // not the one that limits this process
	}
	return own["cpu"]
}
