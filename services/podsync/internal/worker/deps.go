package worker

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/decide"
	"github.com/microlet/microlet/services/podsync/internal/hook"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/podconfig"
	"github.com/microlet/microlet/services/podsync/internal/podlogs"
	"github.com/microlet/microlet/services/podsync/internal/probes"
	"github.com/microlet/microlet/services/podsync/internal/runtime"
	"github.com/microlet/microlet/services/podsync/internal/volume"
)

// Runtime is what a worker asks of the container runtime. Stopping or removing what is
// gone succeeds.
type Runtime interface {
	State(ctx context.Context, uid types.UID) (*pod.State, error)
	RunSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string, urgent bool) (string, error)
	StartContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig, urgent bool, check runtime.Check) (string, error)
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
}

// Remover takes everything that the runtime has of a pod out of it.
type Remover interface {
	Remove(ctx context.Context, state *pod.State) error
}

// Images makes a container's image present and returns what to create the container
// with. An *image.Error is what the container's status shows.
type Images interface {
	Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (*Image, error)
}

// Image is a present image.
type Image struct {
	// Ref is what CRI creates the container with.
	Ref string
	// UID and User are what the image runs as, a number or a name. They are known where the pod says nothing and it decides
	// whether the container may run.
	UID  *int64
	User string
}

// Volumes mounts what a pod names and unmounts what was mounted.
type Volumes interface {
	// Check tells whether every object that the pod's volumes name exists.
	Check(ctx context.Context, p *v1.Pod) error
	// Existing returns the pod's volumes if all are mounted and filled.
	Existing(p *v1.Pod) (map[string]volume.Mounted, bool)
	// Mount sets up what is missing.
	Mount(ctx context.Context, p *v1.Pod) (map[string]volume.Mounted, error)
	// Refresh brings up to date what may have changed.
	Refresh(ctx context.Context, p *v1.Pod) error
	// Unmount also removes the pod's folder.
	Unmount(ctx context.Context, uid types.UID) error
}

// Cgroups makes and removes the pods' cgroups.
type Cgroups interface {
	EnsurePod(p *v1.Pod) (parent string, err error)
	RemovePod(ctx context.Context, uid types.UID) error
}

// Config turns pods into what CRI takes, and makes the folders that it names.
type Config interface {
	Prepare(p *v1.Pod) error
	Sandbox(p *v1.Pod, attempt uint32, cgroupParent string) (*runtimeapi.PodSandboxConfig, error)
	Container(ctx context.Context, p *v1.Pod, c *v1.Container, in podconfig.ContainerInput) (*runtimeapi.ContainerConfig, error)
	LinkLogs(p *v1.Pod, c *v1.Container, restartCount int32, id string) error
}

// Objects remembers which objects pods name.
type Objects interface {
	Register(p *v1.Pod)
	Unregister(uid types.UID)
}

// Logs removes the log folders of pods that are gone.
type Logs interface {
	Remove(p podlogs.Pod) error
	// RemoveContainer removes one container's log and the links to it.
	RemoveContainer(logPath string) error
	// NextRestartCount is the restart count that the logs of a container leave free.
	NextRestartCount(p podlogs.Pod, container string) int32
}

// MirrorManager keeps the mirror pods of static pods, and passes the status of every pod on to the object that shows it in
// the API; see mirror.Manager.
type MirrorManager interface {
	// Want tells of a static pod, which the API knows by its mirror pod alone.
	Want(p *v1.Pod)
	Set(p *v1.Pod, s v1.PodStatus)
	Terminated(p *v1.Pod, s v1.PodStatus)
	UpdateFromAPI(p *v1.Pod)
	Last(uid types.UID) (v1.PodStatus, bool)
	Forget(uid types.UID)
}

// RuntimeClasses finds the runtime handler of a class; no class is the handler "".
type RuntimeClasses interface {
	Handler(ctx context.Context, class *string) (string, error)
}

// Observer is told of every pod that a worker has, of what becomes of it, and of its end.
type Observer interface {
	Pod(p *v1.Pod, source podsyncv1.PodSource, terminating bool)
	Status(uid types.UID, state *pod.State, status *v1.PodStatus)
	Forget(uid types.UID)
}

// Hooks runs lifecycle hooks in and against containers that run.
type Hooks interface {
	Run(ctx context.Context, in hook.Input, handler *v1.LifecycleHandler) error
}

// Deps are the rooms that workers use.
type Deps struct {
	Runtime  Runtime
	Remover  Remover
	Images   Images
	Volumes  Volumes
	Cgroups  Cgroups
	Config   Config
	Objects  Objects
	Logs     Logs
	Mirrors  MirrorManager
	Observer Observer
	Hooks    Hooks
	Events   record.EventRecorder
	// Admission decides which pods may run here, RuntimeClasses by which handler.
	Admission      Admission
	RuntimeClasses RuntimeClasses
	// AdmitEphemeral, if set, decides which containers may join a pod that runs.
	AdmitEphemeral func(p *v1.Pod, c *v1.Container) admission.Verdict
	// AdmitImage, if set, decides whether a container of the pod may run as what its image says.
	AdmitImage func(p *v1.Pod, c *v1.Container, image *Image) admission.Verdict
	// CheckCreated, if set, returns what looks at a container between its creation and its start; nil if nothing needs to.
	CheckCreated func(p *v1.Pod, c *v1.Container, image *Image) runtime.Check
	// Probes returns what the prober said of a pod's containers; nil knows nothing.
	Probes func(uid types.UID) probes.Verdicts
	// HostIPs are the node's, primary first; empty while they are unknown. AssumedHostIPs are the same, or likely ones then,
	// and HostIPsAwaited, if set, says that they are unknown and worth waiting for.
	HostIPs, AssumedHostIPs func() []string
	HostIPsAwaited          func() bool
	// RecursiveReadOnly says whether the pod's runtime handler can mount read-only all the way
	// down; nil: none can.
	RecursiveReadOnly func(p *v1.Pod) bool
	// MaxBackoff bounds CrashLoopBackOff; 0 means 5 minutes.
	MaxBackoff time.Duration
	// Resync is how often a pod is looked at when nothing wakes its worker, up to half added;
	// 0 means a minute.
	Resync time.Duration
	// Gated are the pod fields that are supported because their feature gate is on.
	Gated []string
	// KeepDead is how many dead incarnations of a container stay; at least 1 does.
	KeepDead int
	// Supersede, if set, ends what the runtime has of a static pod under another UID that no worker looks after.
	Supersede func(ctx context.Context, p *v1.Pod) error
	// NetworkProblem, if set, says what keeps pods from having a network; empty when nothing does.
	NetworkProblem func() string
	Log            *slog.Logger
}

// Metrics are the workers' own.
type Metrics struct {
	Wakes   *prometheus.CounterVec
	Refused prometheus.Counter
	syncs   *prometheus.HistogramVec

	sandboxes, sandboxErrors    prometheus.Counter
	containers, containerErrors *prometheus.CounterVec
}

// NewMetrics registers the workers' metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Wakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_wakes_total", Help: "Wake-ups of pod workers, by who woke them.",
		}, []string{"reason"}),
		Refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_podsync_refused_total", Help: "Pods that were not started because they use what is not built.",
		}),
		syncs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds", Help: "Duration in seconds to sync a single pod, by operation type.",
			Buckets: prometheus.DefBuckets,
		}, []string{"operation_type"}),
		sandboxes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_total", Help: "Cumulative number of pod sandboxes that were to be started, failures included.",
		}),
		sandboxErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_errors_total", Help: "Cumulative number of pod sandboxes that could not be started.",
		}),
		containers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_total", Help: "Cumulative number of containers that were to be started, failures included.",
		}, []string{"container_type"}),
		containerErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_errors_total", Help: "Cumulative number of containers that could not be started, by the reason that their status tells.",
		}, []string{"container_type", "code"}),
	}
	r.MustRegister(m.Wakes, m.Refused, m.syncs, m.sandboxes, m.sandboxErrors, m.containers, m.containerErrors)
	return m
}

func (m *Metrics) observeSync(p phase, began time.Time) {
	m.syncs.WithLabelValues(p.String()).Observe(time.Since(began).Seconds())
}

func (m *Metrics) countSandbox(err error) {
	m.sandboxes.Inc()
	if err != nil {
		m.sandboxErrors.Inc()
	}
}

// countStart counts a container that was to be started, and the reason if it was not.
func (m *Metrics) countStart(s *decide.Start, err error, reason string) {
	kind := "container"
	switch {
	case s.Init:
		kind = "init_container"
	case s.Ephemeral:
		kind = "ephemeral_container"
	}
	m.containers.WithLabelValues(kind).Inc()
	if err != nil {
		m.containerErrors.WithLabelValues(kind, reason).Inc()
	}
}

func equalMaps(a, b map[string]string) bool { return maps.Equal(a, b) }
