package pods

import (
	"context"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/podtrace"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/images"
	"github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/fields"
	podstatus "github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/pods/internal/hook"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// Runtime makes a worker's calls of the container runtime. Stopping or removing what is gone succeeds.
type Runtime interface {
	State(ctx context.Context, uid types.UID) (*pod.State, error)
	RunSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string, urgent bool) (string, error)
	StartContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig,
		sandbox *runtimeapi.PodSandboxConfig, urgent bool, check runtime.Check) (string, error)
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	StopSandbox(ctx context.Context, id string) error
	// UpdateContainer gives a container that runs other resources.
	UpdateContainer(ctx context.Context, uid types.UID, id string, resources *runtimeapi.LinuxContainerResources) error
	// UpdateSandbox passes on to the runtime what a pod is about to have as a whole, which it may refuse.
	UpdateSandbox(ctx context.Context, id string, resources, overhead *runtimeapi.LinuxContainerResources) error
}

// Remover removes what nothing waits for.
type Remover interface {
	// Remove removes everything that the runtime has of a pod.
	Remove(ctx context.Context, state *pod.State) error
	RemoveContainer(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
}

// Images makes a container's image present and returns it. The container's status shows an *images.Error.
type Images interface {
	Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (*images.Image, error)
	// EnsureVolume makes the image of an image volume present, and returns what CRI mounts.
	EnsureVolume(ctx context.Context, p *v1.Pod, v *v1.ImageVolumeSource) (*runtimeapi.ImageSpec, error)
}

// Volumes mounts what a pod names and unmounts what was mounted.
type Volumes interface {
	// Check reports whether every object that the pod's volumes name exists.
	Check(ctx context.Context, p *v1.Pod) error
	// Existing returns the pod's volumes if all are mounted and filled.
	Existing(p *v1.Pod) (map[string]volumes.Mounted, bool)
	// Mount sets up what is missing.
	Mount(ctx context.Context, p *v1.Pod) (map[string]volumes.Mounted, error)
	// Refresh brings up to date what may have changed.
	Refresh(ctx context.Context, p *v1.Pod) error
	// Hold keeps from being renewed, until release is called, what the container mounts of files in volumes.
	Hold(ctx context.Context, p *v1.Pod, c *v1.Container) (release func(), err error)
	// Unmount also removes the pod's folder.
	Unmount(ctx context.Context, uid types.UID) error
}

// Cgroups makes and removes the pods' cgroups.
type Cgroups interface {
	EnsurePod(p *v1.Pod) (parent string, err error)
	// ReadPod reads the pod's cgroup and what its containers of these IDs use; nil for a pod without.
	ReadPod(p *v1.Pod, containers []string) (*pod.Cgroup, error)
	// SetPod changes the limits of the pod's cgroup.
	SetPod(p *v1.Pod, before, after pod.CgroupLimits) error
	RemovePod(ctx context.Context, uid types.UID) error
}

// Config makes the messages of CRI from pods, and the folders that these name.
type Config interface {
	Prepare(p *v1.Pod) error
	Sandbox(p *v1.Pod, in criconfig.SandboxInput) (*runtimeapi.PodSandboxConfig, error)
	Container(ctx context.Context, p *v1.Pod, c *v1.Container,
		in criconfig.ContainerInput) (*runtimeapi.ContainerConfig, error)
	LinkLogs(p *v1.Pod, c *v1.Container, restartCount int32, id string) error
	// ContainerResources are what a container is created with, and ContainerUpdate what one that runs is given.
	ContainerResources(p *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources
	ContainerUpdate(p *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources
	// SandboxUpdate is what the runtime gets of a pod whose cgroup is to have these limits.
	SandboxUpdate(p *v1.Pod, l pod.CgroupLimits) (resources, overhead *runtimeapi.LinuxContainerResources)
}

// UserNamespaces gives users of their own to pods with hostUsers: false.
type UserNamespaces interface {
	// Of returns the user namespace of a sandbox, or the one that a new sandbox is to have if it is nil.
	Of(ctx context.Context, uid types.UID, sandbox *pod.Sandbox) (*runtimeapi.UserNamespace, error)
}

// Objects remembers which objects pods name.
type Objects interface {
	Register(p *v1.Pod)
	Unregister(uid types.UID)
}

// Logs removes the log folders of pods that are gone.
type Logs interface {
	Remove(p logs.Pod) error
	// RemoveContainer removes one container's log and the links to it.
	RemoveContainer(logPath string) error
	// NextRestartCount is the restart count that the logs of a container leave free.
	NextRestartCount(p logs.Pod, container string) int32
}

// Statuses is the way of a pod's status to the object that shows it in the API; see status.Statuses.
type Statuses interface {
	// Want announces a static pod, which the API shows by its mirror pod alone.
	Want(p *v1.Pod)
	Set(p *v1.Pod, s v1.PodStatus)
	// Terminated reports the last status of a pod that is being deleted, whose object may go now.
	Terminated(p *v1.Pod, s v1.PodStatus)
	UpdateFromAPI(p *v1.Pod)
	// Last returns the status that was reported last, or that an earlier podsync reported.
	Last(uid types.UID) (v1.PodStatus, bool)
	Forget(uid types.UID)
}

// RuntimeClasses finds the runtime handler of a class; no class is the handler "".
type RuntimeClasses interface {
	Handler(ctx context.Context, class *string) (string, error)
}

// PodReporter learns of every pod that a worker has, of what becomes of it, and of its end.
type PodReporter interface {
	// Pod takes a pod with the resources that are granted, and with those that it asks for.
	Pod(p, desired *v1.Pod, source podsyncv1.PodSource, terminating bool)
	Status(uid types.UID, state *pod.State, status *v1.PodStatus)
	Forget(uid types.UID)
}

// Hooks runs lifecycle hooks in and against containers that run.
type Hooks interface {
	Run(ctx context.Context, in hook.Input, handler *v1.LifecycleHandler) error
}

// RuntimeState is the state that the container runtime reported last.
type RuntimeState interface {
	// NetworkProblem returns why pods have no network; empty if they have one.
	NetworkProblem() string
	// RecursiveReadOnly reports whether the pod's runtime handler can mount read-only all the way down.
	RecursiveReadOnly(p *v1.Pod) bool
	// UserNamespaces returns nil if a runtime handler supports user namespaces, or else the error that the pod shows.
	UserNamespaces(ctx context.Context, handler string) error
}

// Predecessors ends what runs of static pods under the UIDs of earlier manifests.
type Predecessors interface {
	// End ends what the runtime has of a static pod under another UID that no worker looks after.
	End(ctx context.Context, p *v1.Pod) error
}

// ContainerAdmission decides which containers of an admitted pod may run.
type ContainerAdmission interface {
	// AdmitEphemeral decides which containers may join a pod that runs.
	AdmitEphemeral(p *v1.Pod, c *v1.Container) admission.Result
	// AdmitImage decides whether a container of the pod may run as the user of its image.
	AdmitImage(p *v1.Pod, c *v1.Container, image *images.Image) admission.Result
	// CheckCreated returns the check of a container between its creation and its start; nil if it needs none.
	CheckCreated(p *v1.Pod, c *v1.Container, image *images.Image) runtime.Check
}

// Allocation knows which resources pods have; see allocation.Allocation. Its methods do not block.
type Allocation interface {
	// Apply returns a version of a pod with the resources that the node has granted.
	Apply(p *v1.Pod) *v1.Pod
	// Admitted notes that a pod was admitted with the resources that this version of it has.
	Admitted(p *v1.Pod)
	// Want takes the newest version of a pod, with the resources that it asks for. It reports whether a decision on them
	// follows at once, after which Workers.Granted is called.
	Want(p *v1.Pod) (decides bool)
	// Conditions say how a pod's resize fares.
	Conditions(uid types.UID) []v1.PodCondition
	// Actuated returns the resources that were last given to the runtime and the cgroups, as far as that is known.
	Actuated(uid types.UID) (pod.Resources, bool)
	// SetActuatedContainer and SetActuatedPod record what was given to a container, and to a pod's cgroup.
	SetActuatedContainer(uid types.UID, name string, r v1.ResourceRequirements)
	SetActuatedPod(uid types.UID, r *v1.ResourceRequirements)
	// Actuating notes that the worker begins to give a pod the resources that this version of it has. Completed notes that
	// it has them, and Failed why it has not.
	Actuating(p *v1.Pod)
	Completed(p *v1.Pod)
	Failed(p *v1.Pod, why error)
	// Ended notes that nothing of a pod will run any more.
	Ended(uid types.UID)
	Forget(uid types.UID)
}

// Grants ask for what pods need of the node beside CPU time and memory, which is devices, and know what was granted; see
// grants.Grants.
type Grants interface {
	// Needs reports whether a pod has to be asked for.
	Needs(p *v1.Pod) bool
	// Allocate asks for a pod, within a deadline, while others that are placed hold what they have. running: something of
	// the pod runs. An error means that the pod has to wait, and says for what.
	Allocate(ctx context.Context, p *v1.Pod, placed []types.UID, running bool) (admission.Result, error)
	// Lacks reports whether it is not known what a container was granted, so that it has to be asked for.
	Lacks(p *v1.Pod, c *v1.Container) bool
	// Container returns what a container that is about to start was granted, when that has been prepared; nil for nothing.
	Container(ctx context.Context, p *v1.Pod, c *v1.Container) (*resourcesv1.ContainerResources, error)
	// Statuses returns what the containers' statuses say of devices, by name, if that is known.
	Statuses(uid types.UID) (map[string][]v1.ResourceStatus, bool)
	Forget(uid types.UID)
}

// Probes has the results of the prober.
type Probes interface {
	// Of returns the results of the probes of a pod's containers.
	Of(uid types.UID) decide.Results
}

// HostIPs are the node's addresses, the primary one first.
type HostIPs interface {
	// Known are empty while the addresses are unknown.
	Known() []string
	// Assumed are Known, or likely addresses while these are unknown.
	Assumed() []string
	// Awaited reports whether the addresses are unknown and worth waiting for.
	Awaited() bool
}

// Deps are what workers use, by concern. All interfaces are needed.
type Deps struct {
	RuntimeDeps
	Resources
	Admissions
	Reporting
	Limits
	Log *slog.Logger
}

// RuntimeDeps run pods.
type RuntimeDeps struct {
	Runtime        Runtime
	Remover        Remover
	RuntimeState   RuntimeState
	RuntimeClasses RuntimeClasses
	Predecessors   Predecessors
}

// Resources are what pods run with.
type Resources struct {
	Images  Images
	Volumes Volumes
	Cgroups Cgroups
	Config  Config
	Objects Objects
	Logs    Logs
	Hooks   Hooks
	Users   UserNamespaces
}

// Admissions decide what may run here.
type Admissions struct {
	Admission          Admission
	ContainerAdmission ContainerAdmission
	Allocation         Allocation
	Grants             Grants
	// Update returns why the node cannot do what a newer version of a pod needs; empty if it can.
	Update func(old, newer *v1.Pod) string
	// Ends returns how a pod is to end at once because the node shuts down; nil for a pod that may run.
	Ends func(p *v1.Pod) *podstatus.Override
}

// Reporting holds where workers report the status, and the parts of the status that are not from the runtime.
type Reporting struct {
	Statuses Statuses
	Reporter PodReporter
	Events   record.EventRecorder
	Probes   Probes
	HostIPs  HostIPs
	// Traces are those of the pods; nil is none.
	Traces *podtrace.Traces
}

// Limits are settings of the workers.
type Limits struct {
	// MaxBackoff bounds CrashLoopBackOff; 0 means 5 minutes.
	MaxBackoff time.Duration
	// Resync is how often a worker syncs its pod when nothing wakes it, up to half added; 0 means a minute.
	Resync time.Duration
	// Gated are the pod fields that are supported because their feature gate is on: GatedFields.
	Gated []string
	// WithoutDeviceHealth leaves the devices of containers out of their statuses.
	WithoutDeviceHealth bool
	// WithoutPodResources leaves the resources of pods as a whole out of their statuses.
	WithoutPodResources bool
	// KeepDead is how many dead instances of a container stay; at least 1 does.
	KeepDead int
}

// GatedFields are the pod fields whose feature gates are on.
func GatedFields(enabled func(gate string) bool) []string { return fields.Gated(enabled) }
