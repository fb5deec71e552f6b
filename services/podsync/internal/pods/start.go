package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/images"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// place is where a pod's containers are created.
type place struct {
	sandbox   *runtimeapi.PodSandboxConfig
	sandboxID string
	podIPs    []string
	users     *runtimeapi.UserNamespace // nil: those of the host
	volumes   map[string]volumes.Mounted
	// state is what the decision rested on.
	state *pod.State
}

// start creates the sandbox that is missing and starts containers in their order. Images are pulled while the volumes
// are mounted and the sandbox starts.
func (w *worker) start(ctx context.Context, p *v1.Pod, state *pod.State, a *decide.Actions) (err error) {
	if err := w.networkReady(p); err != nil {
		return err
	}
	if err := w.hostIPsReady(p); err != nil {
		return err
	}
	if a.Sandbox != nil && podutil.OwnUsers(&p.Spec) {
		defer func() {
			if ctx.Err() == nil {
				w.metrics.countUserNamespace(err)
			}
		}()
	}
	w.pulls.begin(ctx, p, a.Start)
	at, err := w.prepare(ctx, p, state, a)
	if err != nil {
		return err
	}
	waiting := ctx
	if len(a.Kill) == 0 { // what this decision has stopped is not always started by another
		var end func()
		waiting, end = w.inbox.untilRegranted(ctx)
		defer end()
	}
	var errs []error
	for i := range a.Start {
		within, span := tracing.Start(ctx, "startContainer")
		span.Set(tracing.ContainerName, a.Start[i].Name)
		err := w.startContainer(within, waiting, p, &a.Start[i], at)
		span.End(err)
		if errors.Is(err, errRegranted) {
			return err
		}
		if ctx.Err() == nil {
			w.metrics.countStart(&a.Start[i], err, w.reporter.why(a.Start[i].Name).Reason)
		}
		if err != nil {
			errs = append(errs, err) // the failure of one container stops no other
		}
	}
	return errors.Join(errs...)
}

// prepare gives the pod its folders, cgroup, volumes and sandbox.
func (w *worker) prepare(ctx context.Context, p *v1.Pod, state *pod.State, a *decide.Actions) (*place, error) {
	if err := w.deps.Config.Prepare(p); err != nil {
		w.deps.event(p, v1.EventTypeWarning, reasonFailedToMakePodDataDirectories,
			"error making pod data directories: %v", err)
		return nil, transient("make the pod's folders", err)
	}
	parent, err := w.deps.Cgroups.EnsurePod(p)
	if err != nil {
		w.deps.event(p, v1.EventTypeWarning, reasonFailedToCreatePodContainer,
			"unable to ensure pod container exists: %v", err)
		return nil, transient("make the pod's cgroup", err)
	}
	users, config, err := w.sandboxConfig(ctx, p, state, a, parent)
	if err != nil {
		if ctx.Err() == nil {
			w.deps.event(p, v1.EventTypeWarning, reasonFailedCreatePodSandBox, "Failed to create pod sandbox: %v",
				plain(err))
		}
		return nil, reported("generate the sandbox's config", err)
	}
	mounting, err := w.volumes(ctx, p)
	if err != nil {
		return nil, err
	}
	at := &place{sandbox: config, sandboxID: a.SandboxID, users: users, state: state}
	if a.Sandbox != nil {
		within, span := tracing.Start(ctx, "createPodSandbox")
		at.sandboxID, err = w.runSandbox(within, p, config, a.Sandbox)
		span.End(err)
		if err == nil && isWholeRestart(a) {
			w.noteWholeRestart(p)
		}
	}
	mounted := <-mounting
	if err = errors.Join(err, mounted.err); err != nil {
		w.rejectBeyondLimit(p, mounted.err)
		return nil, err
	}
	at.volumes = mounted.volumes
	w.keepFresh(ctx, p)
	at.podIPs, err = w.podIPs(ctx, p, state, a)
	return at, err
}

// sandboxConfig is the config of the sandbox, a new one or the one that the containers join, with the pod's users.
func (w *worker) sandboxConfig(ctx context.Context, p *v1.Pod, state *pod.State, a *decide.Actions,
	parent string) (*runtimeapi.UserNamespace, *runtimeapi.PodSandboxConfig, error) {
	users, err := w.users(ctx, p, state, a)
	if err != nil {
		return nil, nil, err
	}
	config, err := w.deps.Config.Sandbox(p, criconfig.SandboxInput{
		Attempt: attempt(state, a), CgroupParent: parent, UserNamespace: users,
	})
	return users, config, err
}

// users is the user namespace of a pod with hostUsers: false, and nil for others.
func (w *worker) users(ctx context.Context, p *v1.Pod, state *pod.State,
	a *decide.Actions) (*runtimeapi.UserNamespace, error) {
	if !podutil.OwnUsers(&p.Spec) {
		return nil, nil
	}
	handler, err := w.deps.RuntimeClasses.Handler(ctx, p.Spec.RuntimeClassName)
	if err != nil {
		return nil, err
	}
	if err := w.deps.RuntimeState.UserNamespaces(ctx, handler); err != nil {
		return nil, err
	}
	if a.Sandbox != nil {
		return w.deps.Users.Of(ctx, w.uid, nil)
	}
	joined := &pod.Sandbox{ID: a.SandboxID}
	if current := state.ReadySandbox(); current != nil && current.ID == a.SandboxID {
		joined = current
	}
	return w.deps.Users.Of(ctx, w.uid, joined)
}

func attempt(state *pod.State, a *decide.Actions) uint32 {
	if a.Sandbox != nil {
		return a.Sandbox.Attempt
	}
	if current := state.ReadySandbox(); current != nil {
		return current.Attempt
	}
	return 0
}

func (w *worker) runSandbox(ctx context.Context, p *v1.Pod, config *runtimeapi.PodSandboxConfig,
	s *decide.Sandbox) (string, error) {
	if s.Attempt > 0 {
		w.deps.event(p, v1.EventTypeNormal, reasonSandboxChanged,
			"Pod sandbox changed, it will be killed and re-created.")
	}
	handler, err := w.deps.RuntimeClasses.Handler(ctx, p.Spec.RuntimeClassName)
	if err != nil {
		if ctx.Err() == nil {
			w.deps.event(p, v1.EventTypeWarning, reasonFailedCreatePodSandBox, "Failed to create pod sandbox: %v", err)
		}
		return "", reported("find the runtime class", err)
	}
	var id string
	err = w.create(ctx, func(ctx context.Context) (err error) {
		id, err = w.deps.Runtime.RunSandbox(ctx, config, handler, urgent(p))
		return err
	})
	if ctx.Err() == nil {
		w.metrics.countSandbox(err)
	}
	if err != nil {
		if ctx.Err() == nil {
			w.deps.event(p, v1.EventTypeWarning, reasonFailedCreatePodSandBox, "Failed to create pod sandbox: %v",
				plain(err))
		}
		return "", transient("create the sandbox", err)
	}
	return id, nil
}

// podIPs returns the addresses for the containers' hosts file and downward API: the sandbox's, or the node's for a pod
// on the host's network.
func (w *worker) podIPs(ctx context.Context, p *v1.Pod, state *pod.State, a *decide.Actions) ([]string, error) {
	if p.Spec.HostNetwork {
		return w.deps.HostIPs.Assumed(), nil
	}
	if a.Sandbox != nil {
		var err error
		if state, err = w.readState(ctx); err != nil {
			if ctx.Err() == nil {
				w.deps.event(p, v1.EventTypeWarning, reasonFailedStatusPodSandBox,
					"Unable to get pod sandbox status: %v", plain(err))
			}
			return nil, err
		}
		w.reporter.report(p, state)
	}
	if current := state.ReadySandbox(); current != nil {
		return status.SortIPs(current.IPs, primary(w.deps.HostIPs.Assumed())), nil
	}
	return nil, transient("read the sandbox's addresses", errors.New("it is gone again"))
}

// startContainer starts a container. It waits for its image no longer than waiting does: the pull goes on.
func (w *worker) startContainer(ctx, waiting context.Context, p *v1.Pod, s *decide.Start, at *place) error {
	c := s.Spec
	present, err := w.pulls.take(waiting, c.Name)
	if errors.Is(err, errRegranted) {
		return err
	}
	if err != nil {
		return w.lacksImage(p, c.Name, err)
	}
	if err := w.admitImage(p, c, present.Image); err != nil {
		return w.misconfigured(p, c.Name, "judge the image of container ", err)
	}
	target, err := targetID(p, s, at.state)
	if err != nil {
		return w.misconfigured(p, c.Name, "find the target of container ", err)
	}
	granted, err := w.devicesOf(ctx, p, c)
	if err != nil {
		return err
	}
	release, err := w.deps.Volumes.Hold(ctx, p, c)
	if err != nil {
		return w.misconfigured(p, c.Name, "keep the volumes' files for container ", err)
	}
	config, err := w.deps.Config.Container(ctx, p, c, criconfig.ContainerInput{
		RestartCount: s.RestartCount, ImageRef: present.Ref, ImageUID: present.UID, ImageUser: present.User,
		PodIPs: at.podIPs, Volumes: at.volumes, ImageVolumes: present.volumes, TargetID: target, UserNamespace: at.users,
		Granted: granted,
	})
	if err != nil {
		release()
		return w.misconfigured(p, c.Name, "configure container ", err)
	}
	check := w.deps.ContainerAdmission.CheckCreated(p, c, present.Image)
	w.backoff.Started(*s, time.Now())
	if !s.Ephemeral {
		w.recordContainer(p, c.Name, c.Resources) // before, so that a crash does not have it start again for them
	}
	var id string
	err = w.create(ctx, func(ctx context.Context) (err error) {
		defer release() // the runtime has mounted what it mounts
		id, err = w.deps.Runtime.StartContainer(ctx, at.sandboxID, config, at.sandbox, urgent(p), check)
		return err
	})
	if ctx.Err() == nil {
		w.metrics.countImageVolumes(len(present.volumes), err)
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		w.notStarted(p, c.Name, err)
		return reported("start container "+c.Name, err)
	}
	w.reporter.runs(c.Name)
	w.deps.containerEvent(p, c.Name, v1.EventTypeNormal, reasonCreated, "Container created")
	w.deps.containerEvent(p, c.Name, v1.EventTypeNormal, reasonStarted, "Container started")
	if err := w.deps.Config.LinkLogs(p, c, s.RestartCount, id); err != nil {
		w.deps.Log.Warn("container log not linked", logkey.Pod, podName(p), logkey.Container, c.Name, logkey.Err, err)
	}
	return w.postStart(ctx, p, c, id)
}

// lacksImage shows why a container waits for an image.
func (w *worker) lacksImage(p *v1.Pod, container string, err error) error {
	what := "image of container "
	var waiting *images.Error
	if errors.As(err, &waiting) {
		// The puller has reported what is about a container's own image.
		var ofVolume volumeImageError
		if errors.As(err, &ofVolume) {
			w.deps.containerEvent(p, container, v1.EventTypeWarning, reasonFailed, "Error: %s", waiting.Reason)
		}
		w.reporter.waits(container, waiting.Reason, waiting.Message)
		if waiting.Reason == images.ReasonPull {
			// The next sync shows the puller's back-off, as under the kubelet.
			return reportedSoon(what+container, err)
		}
	}
	return reported(what+container, err)
}

// admitImage returns why a container may not run as the user of its image; nil if it may.
func (w *worker) admitImage(p *v1.Pod, c *v1.Container, image *images.Image) error {
	if v := w.deps.ContainerAdmission.AdmitImage(p, c, image); !v.Admitted() {
		return errors.New(v.Message)
	}
	return nil
}

// misconfigured reports a container that cannot be created as its pod or its image specifies.
func (w *worker) misconfigured(p *v1.Pod, name, doing string, err error) error {
	w.reporter.waits(name, reasonCreateContainerConfigError, err.Error())
	w.deps.containerEvent(p, name, v1.EventTypeWarning, reasonFailed, "Error: %v", err)
	return reported(doing+name, err)
}

// notStarted reports a container that the runtime would not create or start.
func (w *worker) notStarted(p *v1.Pod, name string, err error) {
	var refused *runtime.RefusedError
	if errors.As(err, &refused) {
		w.reporter.waits(name, reasonCreateContainerConfigError, refused.Message)
		w.deps.containerEvent(p, name, v1.EventTypeWarning, reasonFailed, "Error: %s", refused.Message)
		return
	}
	reason := reasonCreateContainerError
	var start *runtime.StartError
	if errors.As(err, &start) {
		reason = reasonRunContainerError
		w.deps.containerEvent(p, name, v1.EventTypeNormal, reasonCreated, "Container created")
	}
	w.reporter.waits(name, reason, runtime.Message(err))
	w.deps.containerEvent(p, name, v1.EventTypeWarning, reasonFailed, "Error: %s", runtime.Message(err))
}

// targetID returns the ID of the container that an ephemeral container targets, if it names one.
func targetID(p *v1.Pod, s *decide.Start, state *pod.State) (string, error) {
	if !s.Ephemeral {
		return "", nil
	}
	name := p.Spec.EphemeralContainers[s.Index].TargetContainerName
	if name == "" {
		return "", nil
	}
	target := state.Latest(name)
	if target == nil {
		return "", fmt.Errorf("unable to find target container %s", name)
	}
	return target.ID, nil
}

func primary(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}

// urgent pods have reserved slots for runtime calls: a network plugin that hangs must not keep the pod that repairs it
// from starting.
func urgent(p *v1.Pod) bool {
	return p.Spec.HostNetwork || p.Spec.Priority != nil && *p.Spec.Priority >= podutil.SystemCriticalPriority
}
