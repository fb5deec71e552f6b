package twins

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"
	proberesults "k8s.io/kubernetes/pkg/kubelet/prober/results"
	"k8s.io/kubernetes/pkg/kubelet/status"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// now is when both decide.
var now = begin.Add(3*time.Hour + 10*time.Minute)

// podActions is what is done for a pod, in a form that both have.
type podActions struct {
	// Ends: the pod is stopped, and no sandbox follows.
	Ends bool
	// StopContainers and StopSandboxes are those that are stopped with the pod.
	StopContainers []kill
	StopSandboxes  []string
	Kills          []kill
	// Resets are removed, and those that run are stopped before. AskedLast: those that asked for it are the last.
	Resets    []string
	AskedLast bool
	// Sandbox that containers start in: the id of the present one, or the attempt of the new one.
	Sandbox string
	Starts  []string
	Waits   []wait
	// Removes are the dead instances that go while the pod lives.
	Removes []string
}

// kill is the stop of one container.
type kill struct {
	ID, Event string
	Grace     time.Duration
	PreStop   bool
}

type wait struct {
	Name, Message string
	Until         time.Time
}

var _ = register(Pair[situation, podActions]{
	Name:     "podactions",
	Generate: drawSituation,
	Upstream: kubeletPodActions,
	Ours:     ourPodActions,
	Branches: podActionsBranches,
	Wanted: []string{
		"stops a terminating pod", "ends a pod that is complete", "ends a pod whose init container failed",
		"replaces the sandbox", "creates the first sandbox", "leaves a pod without a sandbox", "resets all containers",
		"starts an init container", "starts a sidecar", "starts a container", "starts an ephemeral container",
		"kills a changed container", "kills a changed sidecar", "kills after a liveness probe",
		"kills after a startup probe", "kills a sidecar after a liveness probe", "kills a sidecar after a startup probe",
		"kills a container in unknown state", "kills an init container in unknown state", "backs off", "does nothing",
		"removes dead instances",
	},
	Differences: podActionsDifferences,
	Break: func(in situation, out *podActions) {
		// Of a pod with OnFailure, what has succeeded runs again.
		for _, c := range in.Pod.Spec.Containers {
			last := in.State.Latest(c.Name)
			if in.Pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure && c.RestartPolicy == nil && !out.Ends && last != nil &&
				last.State == runtimeapi.ContainerState_CONTAINER_EXITED && last.ExitCode == 0 {
				out.Starts = append(out.Starts, c.Name)
			}
		}
	},
	Show: situation.String,
})

// stopRecorder is a runtime that only stops and removes containers.
type stopRecorder struct {
	internalapi.RuntimeService
	seconds int64
	removed []string
}

func (r *stopRecorder) RemoveContainer(_ context.Context, id string) error {
	r.removed = append(r.removed, id)
	return nil
}

func (r *stopRecorder) StopContainer(_ context.Context, _ string, timeout int64) error {
	r.seconds = timeout
	return nil
}

func (r *stopRecorder) ContainerStatus(context.Context, string, bool) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{}}, nil
}

// results are probe results of the kubelet.
type results struct {
	proberesults.Manager
	by map[string]decide.Result
}

func (r results) Get(id kubecontainer.ContainerID) (proberesults.Result, bool) {
	result, found := r.by[id.ID]
	return map[decide.Result]proberesults.Result{
		decide.Success: proberesults.Success, decide.Failure: proberesults.Failure,
	}[result], found
}

// twin drives the kubelet's functions for one situation, as its SyncPod does.
type twin struct {
	*kuberuntime.Twin
	stops  *stopRecorder
	in     situation
	status *kubecontainer.PodStatus
	out    podActions
	ctx    context.Context
}

func newTwin(in situation) *twin {
	stops := &stopRecorder{}
	return &twin{
		stops: stops, in: in, status: kubeStatus(in.Pod, in.State), ctx: context.Background(),
		Twin: kuberuntime.NewTwin(stops, results{by: in.Liveness}, results{by: in.Startup}),
	}
}

func kubeletPodActions(in situation) podActions {
	t := newTwin(in)
	if ending(in.Pod) {
		// Its worker stops it and asks for no actions.
		t.out.Ends = true
		t.stopAll()
		return t.out
	}
	t.sync()
	return t.out
}

func ending(p *v1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded
}

func (t *twin) sync() {
	actions, kills, resets := t.PodActions(t.ctx, t.in.Pod, t.status, restartsAll(t.in))
	t.out.Ends = actions.KillPod && !actions.CreateSandbox
	if actions.KillPod {
		t.stopAll()
	} else {
		for id, k := range kills {
			t.out.Kills = append(t.out.Kills, t.kill(id, k.Name, k.Message, k.Reason, nil))
		}
		for _, r := range resets {
			if r.Kill {
				name, _, _ := strings.Cut(r.ID, "-")
				t.out.Kills = append(t.out.Kills, t.kill(kubeID(r.ID), name, "killing", "", new(int64(0))))
			}
			t.out.Resets = append(t.out.Resets, r.ID)
		}
		t.out.sortResets(t.in)
	}
	byID(t.out.Kills)
	t.start(actions.EphemeralContainersToStart, actions.InitContainersToStart, actions.ContainersToStart)
	switch {
	case actions.CreateSandbox:
		t.out.Sandbox = fmt.Sprintf("attempt %d", actions.Attempt)
	case len(t.out.Starts) > 0:
		t.out.Sandbox = actions.SandboxID
	}
	if !t.out.Ends && len(t.out.Resets) == 0 {
		t.remove(actions.CreateSandbox)
	}
}

// remove removes what SyncPod does, and what is removed as soon as a container has died.
func (t *twin) remove(replaces bool) {
	t.RemoveInit(t.ctx, t.in.Pod, t.status, replaces)
	removed := t.stops.removed
	for _, c := range t.in.State.Containers {
		if exited(&c) {
			removed = append(removed, kubelet.TwinDead(c.ID, t.status, t.in.KeepDead)...)
		}
	}
	slices.Sort(removed)
	t.out.Removes = slices.Compact(removed)
}

// restartsAll is the condition by which the kubelet's SyncPod resets all containers.
func restartsAll(in situation) bool {
	c := status.GenerateAllContainersRestartingCondition(in.Pod, kubeStatus(in.Pod, in.State), &in.Pod.Status,
		in.Pod.Status.Phase)
	return c.Status == v1.ConditionTrue
}

func (t *twin) start(ephemeral, init, regular []int) {
	spec := &t.in.Pod.Spec
	clock := clocktesting.NewFakeClock(now)
	backOff := flowcontrol.NewFakeBackOff(10*time.Second, 300*time.Second, clock)
	for name, restarts := range t.in.Restarts {
		c := specOf(spec, name).DeepCopy()
		if last := t.in.State.Latest(name); last != nil && last.Hash != kubeHash(c.Name, c.Image) {
			c.Image = "image:0"
		}
		for _, r := range restarts {
			clock.SetTime(r.started)
			backOff.GC()
			backOff.Next(kuberuntime.GetBackoffKey(t.in.Pod, c), r.ended)
		}
	}
	clock.SetTime(now)
	backOff.GC()
	one := func(c *v1.Container) bool {
		waits, message, until := t.BackOff(t.ctx, t.in.Pod, c, t.status, backOff)
		if waits {
			t.out.Waits = append(t.out.Waits, wait{c.Name, message, until})
		} else {
			t.out.Starts = append(t.out.Starts, c.Name)
		}
		return !waits
	}
	for _, i := range ephemeral {
		one((*v1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for _, i := range init {
		if c := &spec.InitContainers[i]; !one(c) && !isSidecar(c) {
			return
		}
	}
	for _, i := range regular {
		one(&spec.Containers[i])
	}
}

// sortResets leaves of the order of the removals what matters of it.
func (out *podActions) sortResets(in situation) {
	asked := func(id string) bool {
		i := slices.IndexFunc(in.State.Containers, func(c pod.Container) bool { return c.ID == id })
		c := &in.State.Containers[i]
		rule, found := podutil.FindMatchingContainerRestartRule(*specOf(&in.Pod.Spec, c.Name), c.ExitCode)
		return found && c.State == runtimeapi.ContainerState_CONTAINER_EXITED &&
			rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
	}
	if first := slices.IndexFunc(out.Resets, asked); first >= 0 {
		out.AskedLast = !slices.ContainsFunc(out.Resets[first:], func(id string) bool { return !asked(id) })
	}
	slices.Sort(out.Resets)
}

func isSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// stopAll stops the pod.
func (t *twin) stopAll() {
	running := kubecontainer.ConvertPodStatusToRunningPod("containerd", t.status)
	for _, c := range running.Containers {
		t.out.StopContainers = append(t.out.StopContainers, t.kill(c.ID, c.Name, "", "Unknown", nil))
	}
	for _, box := range running.Sandboxes {
		t.out.StopSandboxes = append(t.out.StopSandboxes, box.ID.ID)
	}
	byID(t.out.StopContainers)
	slices.Sort(t.out.StopSandboxes)
}

func (t *twin) kill(id kubecontainer.ContainerID, name, message, reason string, grace *int64) kill {
	event, preStop, err := t.Kill(t.ctx, t.in.Pod, id, name, message, reason, grace)
	if err != nil {
		panic(err)
	}
	return kill{id.ID, event, time.Duration(t.stops.seconds) * time.Second, preStop}
}

func byID(kills []kill) {
	slices.SortFunc(kills, func(a, b kill) int { return cmp.Compare(a.ID, b.ID) })
}

func ourPodActions(in situation) podActions {
	b := decide.NewBackoff(0)
	for name, restarts := range in.Restarts {
		for _, r := range restarts {
			b.Started(decide.Start{Name: name, Previous: r.ended}, r.started)
		}
	}
	a := decide.Decide(decide.Input{
		Pod: in.Pod, State: in.State, Now: now, Backoff: b, Hash: criconfig.ContainerHash,
		Liveness: in.Liveness, Startup: in.Startup, Stopped: in.Stopped,
		KeepDead: in.KeepDead,
	})
	out := podActions{Ends: a.Finished || a.StopPod != nil && a.Sandbox == nil, Resets: a.Reset, Removes: a.Remove}
	slices.Sort(out.Removes)
	if a.StopPod != nil {
		out.StopContainers, out.StopSandboxes = ourKills(a.StopPod.Containers), a.StopPod.Sandboxes
		slices.Sort(out.StopSandboxes)
	}
	out.sortResets(in)
	out.Kills = ourKills(a.Kill)
	for _, s := range a.Start {
		out.Starts = append(out.Starts, s.Name)
	}
	for _, w := range a.Wait {
		out.Waits = append(out.Waits, wait{w.Name, w.Message, w.Until})
	}
	switch {
	case a.Sandbox != nil:
		out.Sandbox = fmt.Sprintf("attempt %d", a.Sandbox.Attempt)
	case len(a.Start) > 0:
		out.Sandbox = a.SandboxID
	}
	return out
}

func ourKills(kills []decide.Kill) []kill {
	var list []kill
	for _, k := range kills {
		list = append(list, kill{k.ID, k.Message, k.Grace, k.PreStop})
	}
	byID(list)
	return list
}

// podActionsBranches names what the kubelet did.
func podActionsBranches(in situation, out podActions) []string {
	var did []string
	add := func(when bool, what string) {
		if when {
			did = append(did, what)
		}
	}
	initFailed := slices.ContainsFunc(in.Pod.Spec.InitContainers, func(c v1.Container) bool {
		last := in.State.Latest(c.Name)
		return last != nil && !isSidecar(&c) && (exited(last) && last.ExitCode != 0 ||
			last.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN)
	})
	present := len(in.State.Sandboxes) > 0
	ready := present && in.State.Sandboxes[0].Ready
	add(ending(in.Pod), "stops a terminating pod")
	add(out.Ends && !ending(in.Pod) && ready && !initFailed, "ends a pod that is complete")
	add(out.Ends && !ending(in.Pod) && ready && initFailed, "ends a pod whose init container failed")
	add(out.Ends && !ending(in.Pod) && present && !ready, "leaves a pod without a sandbox")
	add(strings.HasPrefix(out.Sandbox, "attempt") && present, "replaces the sandbox")
	add(strings.HasPrefix(out.Sandbox, "attempt") && !present, "creates the first sandbox")
	add(len(out.Resets) > 0, "resets all containers")
	for _, name := range out.Starts {
		switch c := specOf(&in.Pod.Spec, name); {
		case name[0] == 'e':
			add(true, "starts an ephemeral container")
		case name[0] == 'c':
			add(true, "starts a container")
		default:
			add(isSidecar(c), "starts a sidecar")
			add(!isSidecar(c), "starts an init container")
		}
	}
	for _, k := range out.Kills {
		for _, kind := range [][2]string{
			{"Container c", " definition changed=kills a changed container"},
			{"Init container", " definition changed=kills a changed sidecar"},
			{"Container c", " failed liveness probe=kills after a liveness probe"},
			{"Container c", " failed startup probe=kills after a startup probe"},
			{"Init container", " failed liveness probe=kills a sidecar after a liveness probe"},
			{"Init container", " failed startup probe=kills a sidecar after a startup probe"},
			{"Container is in", " state=kills a container in unknown state"},
			{"Init container is in", " state=kills an init container in unknown state"},
		} {
			part, what, _ := strings.Cut(kind[1], "=")
			add(strings.HasPrefix(k.Event, kind[0]) && strings.Contains(k.Event, part), what)
		}
	}
	add(len(out.Waits) > 0, "backs off")
	add(len(out.Removes) > 0, "removes dead instances")
	add(len(did) == 0 && !out.Ends, "does nothing")
	return did
}
