package kuberuntime

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"

	"k8s.io/kubernetes/pkg/kubelet/allocation/state"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/logs"
	proberesults "k8s.io/kubernetes/pkg/kubelet/prober/results"
)

// Twin is a runtime manager with nothing behind it.
type Twin struct {
	m *kubeGenericRuntimeManager
	// Message is that of the last event.
	message string
	hook    bool
}

// NewTwin returns one for one input.
func NewTwin(service internalapi.RuntimeService, liveness, startup proberesults.Manager) *Twin {
	t := &Twin{}
	t.m = &kubeGenericRuntimeManager{
		recorder: twinRecorder{t}, runner: twinRunner{t}, runtimeService: service,
		livenessManager: liveness, startupManager: startup,
		internalLifecycle: cm.NewFakeInternalContainerLifecycle(), actuatedState: twinState,
		logManager: logs.NewStubContainerLogManager(), osInterface: twinNoFiles{},
	}
	return t
}

// twinState knows of no resources: the pods of the comparison ask for none.
var twinState = state.NewStateMemory(klog.Background(), nil)

// TwinKill is containerToKillInfo.
type TwinKill struct{ Name, Message, Reason string }

// TwinReset is containerToRemoveInfo.
type TwinReset struct {
	ID   string
	Kill bool
}

// PodActions is computePodActions.
func (t *Twin) PodActions(ctx context.Context, p *v1.Pod, status *kubecontainer.PodStatus, restartAll bool) (
	actions podActions, kills map[kubecontainer.ContainerID]TwinKill, resets []TwinReset) {
	actions = t.m.computePodActions(ctx, p, status, restartAll)
	kills = map[kubecontainer.ContainerID]TwinKill{}
	for id, info := range actions.ContainersToKill {
		kills[id] = TwinKill{info.name, info.message, string(info.reason)}
	}
	for _, info := range actions.ContainersToReset {
		resets = append(resets, TwinReset{info.containerID.ID, info.kill})
	}
	return actions, kills, resets
}

// BackOff is doBackOff.
func (t *Twin) BackOff(ctx context.Context, p *v1.Pod, c *v1.Container, status *kubecontainer.PodStatus,
	b *flowcontrol.Backoff) (waits bool, message string, until time.Time) {
	waits, message, err := t.m.doBackOff(ctx, p, c, status, b)
	if delayed := (*kubecontainer.BackoffError)(nil); errors.As(err, &delayed) {
		until = delayed.BackoffTime()
	}
	return waits, message, until
}

// Kill is killContainer. The service that the twin was made with gets the stop.
func (t *Twin) Kill(ctx context.Context, p *v1.Pod, id kubecontainer.ContainerID, name, message, reason string,
	grace *int64) (event string, preStop bool, err error) {
	t.message, t.hook = "", false
	err = t.m.killContainer(ctx, p, id, name, message, containerKillReason(reason), grace, nil)
	return t.message, t.hook, err
}

// RemoveInit is what SyncPod removes of init containers. The service that the twin was made with gets the removals.
func (t *Twin) RemoveInit(ctx context.Context, p *v1.Pod, status *kubecontainer.PodStatus, all bool) {
	if all {
		t.m.purgeInitContainers(ctx, p, status)
	}
	t.m.pruneInitContainersBeforeStart(ctx, p, status)
}

// twinNoFiles has no files.
type twinNoFiles struct{ kubecontainer.OSInterface }

func (twinNoFiles) Remove(string) error { return nil }

type twinRecorder struct{ t *Twin }

func (r twinRecorder) WithLogger(klog.Logger) record.EventRecorderLogger { return r }

func (r twinRecorder) Event(_ runtime.Object, _, _, message string) { r.t.message = message }

func (r twinRecorder) Eventf(runtime.Object, string, string, string, ...any) {}

func (r twinRecorder) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {
}

// twinRunner runs no hook, at once.
type twinRunner struct{ t *Twin }

func (r twinRunner) Run(context.Context, kubecontainer.ContainerID, *v1.Pod, *v1.Container, *v1.LifecycleHandler) (
	string, error) {
	r.t.hook = true
	return "", nil
}
