package pods

import (
	"errors"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/eventref"
)

// Reasons of events and waiting containers, as the kubelet's: tools filter on them.
const (
	reasonBackOff                        = "BackOff"
	reasonCrashLoopBackOff               = "CrashLoopBackOff"
	reasonCreateContainerConfigError     = "CreateContainerConfigError"
	reasonCreateContainerError           = "CreateContainerError"
	reasonCreated                        = "Created"
	reasonFailed                         = "Failed"
	reasonFailedCreatePodSandBox         = "FailedCreatePodSandBox"
	reasonFailedKillPod                  = "FailedKillPod"
	reasonFailedMount                    = "FailedMount"
	reasonFailedMapVolume                = "FailedMapVolume"
	reasonFailedAttachVolume             = "FailedAttachVolume"
	reasonFailedNodeDeclaredFeatures     = "FailedNodeDeclaredFeaturesCheck"
	reasonFailedPostStartHook            = "FailedPostStartHook"
	reasonFailedPreStopHook              = "FailedPreStopHook"
	reasonFailedToCreatePodContainer     = "FailedCreatePodContainer"
	reasonFailedToMakePodDataDirectories = "Failed"
	reasonKilling                        = "Killing"
	reasonContainerCreating              = "ContainerCreating"
	reasonPodInitializing                = "PodInitializing"
	reasonPostStartHookError             = "PostStartHookError"
	reasonFailedStatusPodSandBox         = "FailedPodSandBoxStatus"
	reasonFailedSync                     = "FailedSync"
	reasonNetworkNotReady                = "NetworkNotReady"
	reasonRunContainerError              = "RunContainerError"
	// ReasonResourcesNotReady is ours: the kubelet rejects a pod whose device plugin is away.
	ReasonResourcesNotReady = "ResourcesNotReady"
	reasonSandboxChanged    = "SandboxChanged"
	reasonStarted           = "Started"
)

// event records an event about the pod.
func (d *Deps) event(p *v1.Pod, kind, reason, format string, args ...any) {
	d.Events.Eventf(eventref.Pod(p), kind, reason, format, args...)
}

// containerEvent records an event about one container of the pod.
func (d *Deps) containerEvent(p *v1.Pod, container, kind, reason, format string, args ...any) {
	d.Events.Eventf(eventref.Container(p, container), kind, reason, format, args...)
}

// plain returns the runtime's own error, without our context: events show the runtime's message.
func plain(err error) error {
	var wire interface {
		error
		GRPCStatus() *status.Status
	}
	if errors.As(err, &wire) {
		return wire
	}
	return err
}
