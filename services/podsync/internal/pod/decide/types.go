package decide

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Result is the last result of a container's probe.
type Result int8

const (
	// Unknown is the result of a probe that has not run yet: it changes nothing.
	Unknown Result = iota
	// Success is reached when the probe succeeded as often as its threshold asks.
	Success
	// Failure is reached when the probe failed as often as its threshold asks.
	Failure
)

// Results are those of the probes of a pod's containers, by container id. An id that is not in them is Unknown.
type Results struct{ Readiness, Liveness, Startup map[string]Result }

// Input is all that a decision rests on.
type Input struct {
	// Pod as admitted. With a deletion timestamp or a terminal phase it only ever stops.
	Pod *v1.Pod
	// State is what the runtime has of the pod; nil if that is not known, which gives no actions.
	State *pod.State
	Now   time.Time
	// Terminating: the pod ends, because it is evicted, past its deadline or deleted from its source.
	Terminating bool
	// GraceOverride is the grace period in seconds that an eviction or a shutdown sets; nil leaves the pod's own.
	GraceOverride *int64
	// Backoff of the pod's containers, only read; nil lets every container start at once.
	Backoff *Backoff
	// Liveness and Startup hold probe results by container id; an id that is not in them is Unknown.
	Liveness, Startup map[string]Result
	// Reported is the status of the pod that was generated last; nil stands for the API's, which the pod carries.
	Reported *v1.PodStatus
	// Logged holds, by container, the restart count that its logs leave free. It counts for a container of which neither
	// the runtime nor the API knows an instance.
	Logged map[string]int32
	// Unremoved holds, by container, the highest restart count of the dead instances that count no more, are not in State
	// and are still to be removed.
	Unremoved map[string]int32
	// Stopped holds the sandboxes, by id, whose stop has succeeded: their network is gone. That a
	// sandbox is not ready does not prove it: its process may have died, or the machine rebooted.
	Stopped map[string]bool
	// Refused names ephemeral containers that are not to be started.
	Refused map[string]bool
	// Hash of a container's definition, to be compared with the annotation on the running
	// one; nil takes every definition as unchanged.
	Hash func(*v1.Container) uint64
	// KeepDead is how many dead instances of each container stay; at least 1 does.
	KeepDead int
	// Resizing is what the pod has; nil if the granted resources, which the pod has, are in force.
	Resizing *Resizing

	// Owed holds the containers, by id, that were stopped to be started again. Each of them starts, however it ended.
	Owed map[string]bool

	// allAgain: all containers start again, and reported ends do not count any more.
	allAgain bool
}

func (in *Input) reported() *v1.PodStatus {
	if in.Reported != nil {
		return in.Reported
	}
	return &in.Pod.Status
}

// Actions are to be carried out in the order of the fields. The first that fails ends
// the round: the state is read and decided upon again.
type Actions struct {
	// StopPod, if set, stops containers and sandboxes before anything else.
	StopPod *StopPod
	// Kill names single containers to stop; empty when StopPod is set.
	Kill []Kill
	// Remove names dead containers that count no more, whether or not they can be removed: init containers of a sandbox
	// that is replaced, containers that were created but never started, all but the newest KeepDead dead instances of each
	// container, and those that ended for good many sandboxes ago.
	Remove []string
	// Reset names containers that count no more either, and whose logs stay: the pod begins again in its sandbox.
	Reset []string
	// Resize is what gives the pod and its containers, without a restart, what was granted. It does not hold up the rest.
	Resize []ResizeStep
	// ResizeRefused is why memory cannot shrink now.
	ResizeRefused string
	// Resized: what was granted is in force, or will be when the containers of Start have started.
	Resized bool
	// Sandbox is to be created; nil if the one named by SandboxID is to be used.
	Sandbox *Sandbox
	// SandboxID is the ready sandbox that the containers of Start belong to.
	SandboxID string
	// Start names containers in the order of their start. One that is in Kill as well starts
	// after it was stopped.
	Start []Start
	// Wait names containers that the crash loop's backoff holds back.
	Wait []Wait
	// Wake is when time alone may change the decision; zero if it will not.
	Wake time.Time
	// Finished: nothing of the pod runs, every sandbox has been stopped, and nothing will be started again.
	Finished bool
}

// StopReason is why a whole pod is stopped.
type StopReason string

const (
	// StopTerminating is for a pod that is deleted or evicted.
	StopTerminating StopReason = "Terminating"
	// StopSandboxChanged is for a pod whose sandbox is gone or has to be another.
	StopSandboxChanged StopReason = "SandboxChanged"
	// StopCompleted is for a pod of which no container runs or will run again.
	StopCompleted StopReason = "Completed"
	// StopInitFailed is for a pod whose init container failed for good.
	StopInitFailed StopReason = "InitContainerFailed"
)

// StopPod is to stop the containers first, stage by stage, and then the sandboxes.
type StopPod struct {
	Reason StopReason
	// Message for the log.
	Message string
	// Containers that run or may run, by ascending Stage.
	Containers []Kill
	// Sandboxes to stop: all that are ready. One that is to be replaced, and all of a pod that ends,
	// even if they are not, since their network may still be there.
	Sandboxes []string
}

// KillReason names the probe, resize or state that ends a container; empty when a changed
// definition or the pod's end does.
type KillReason string

const (
	// KillLivenessProbe is for a container whose liveness probe failed.
	KillLivenessProbe KillReason = "LivenessProbe"
	// KillStartupProbe is for a container whose startup probe failed.
	KillStartupProbe KillReason = "StartupProbe"
	// KillResize is for a container that has to restart to get what was granted.
	KillResize KillReason = "Resize"
	// KillUnknown is for a container whose state the runtime does not know.
	KillUnknown KillReason = "Unknown"
)

// Kill is a container to stop.
type Kill struct {
	ID, Name string
	// Spec of the container; nil when the pod no longer has one of this name.
	Spec   *v1.Container
	Reason KillReason
	// Message of the Killing event.
	Message string
	// Grace between SIGTERM and SIGKILL, preStop hook included: never under 2 s.
	Grace time.Duration
	// PreStop: the container has a preStop hook and the grace period leaves time for it.
	PreStop bool
	// Restart: the container is to run again afterwards.
	Restart bool
	// Stage orders the stops of a pod with sidecars: containers of one stage stop together, the next
	// stage after them; the grace period is one for all stages. Always 0 outside of StopPod.
	Stage int
	// PlainInit is for an init container that is no sidecar: the stages after it do not wait for it.
	PlainInit bool
}

// Sandbox is a sandbox to create.
type Sandbox struct {
	Attempt uint32
	// Message is what was wrong with the present one, in the words of the PodReadyToStartContainers condition.
	Message string
	// Replaces is the id of the sandbox that was to be used until now; empty if there was none.
	Replaces string
}

// Start is a container to create and start.
type Start struct {
	Name string
	Spec *v1.Container
	// Index into the pod's init containers if Init is set, into its ephemeral containers if
	// Ephemeral is, else into its containers.
	Index     int
	Init      bool
	Ephemeral bool
	// RestartCount of the new instance, for its annotation and log file. The runtime and the logs name instances by it, so
	// no instance that is still there has it.
	RestartCount int32
	// Previous is when the instance that this one follows ended; zero if there is none.
	Previous time.Time
	// Changed: the definition is not the one of the instance before, so the backoff starts from the beginning.
	Changed bool
}

// Wait is a container that is held back.
type Wait struct {
	Name string
	// Until is when the delay ends. Actions.Wake is earlier if the container may start before.
	Until time.Time
	Delay time.Duration
	// Message of the container's waiting state; its reason is CrashLoopBackOff.
	Message string
}
