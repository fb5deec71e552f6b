package twins

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// begin is the moment that the inputs describe.
var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// situation is a pod, what the runtime has of it and what its probes say.
type situation struct {
	Pod               *v1.Pod
	State             *pod.State
	Liveness, Startup map[string]decide.Result
	Readiness         map[string]decide.Result
	// Stopped are the sandboxes of which a stop has succeeded.
	Stopped map[string]bool
	// KeepDead is how many dead instances of each container stay.
	KeepDead int
	// Restarts are the ends and starts of earlier instances, in their order, by container.
	Restarts map[string][]restart
}

// restart is an end after which a container was started again.
type restart struct{ ended, started time.Time }

var exitCodes = []int32{0, 1, 3, 137}

// drawSituation draws a pod and what has become of it.
func drawSituation(s *Source) situation {
	in := situation{
		Pod: drawPod(s), Liveness: map[string]decide.Result{}, Startup: map[string]decide.Result{},
		Readiness: map[string]decide.Result{}, Stopped: map[string]bool{}, Restarts: map[string][]restart{},
	}
	in.State = &pod.State{UID: in.Pod.UID, Name: in.Pod.Name, Namespace: in.Pod.Namespace}
	drawSandboxes(s, &in)
	names := containerNames(&in.Pod.Spec)
	for _, name := range names {
		drawInstances(s, &in, name)
	}
	for _, name := range names {
		if s.Percent(30) {
			drawRestarts(s, &in, name)
		}
	}
	drawReported(s, &in, &in.Pod.Status)
	in.KeepDead = OneOf(s, 1, 1, 0, 2)
	return in
}

func containerNames(spec *v1.PodSpec) []string {
	var names []string
	for i := range spec.InitContainers {
		names = append(names, spec.InitContainers[i].Name)
	}
	for i := range spec.Containers {
		names = append(names, spec.Containers[i].Name)
	}
	for i := range spec.EphemeralContainers {
		names = append(names, spec.EphemeralContainers[i].Name)
	}
	return names
}

// drawPod draws a pod that the API server takes, as TestDrawnPodsAreValid shows.
func drawPod(s *Source) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1", Generation: 1},
		Spec: v1.PodSpec{
			RestartPolicy:                 OneOf(s, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever),
			HostNetwork:                   s.Percent(20),
			TerminationGracePeriodSeconds: new(OneOf(s, int64(30), 0, 1, 5)),
		},
	}
	for i := range OneOf(s, 0, 0, 1, 2, 3) {
		c := drawContainer(s, fmt.Sprintf("i%d", i), true)
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range OneOf(s, 1, 1, 2, 3) {
		p.Spec.Containers = append(p.Spec.Containers, drawContainer(s, fmt.Sprintf("c%d", i), false))
	}
	for i := range OneOf(s, 0, 0, 0, 1, 2) {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: fmt.Sprintf("e%d", i), Image: "image:1"},
		})
	}
	if s.Percent(8) {
		p.DeletionTimestamp = &metav1.Time{Time: begin}
		p.DeletionGracePeriodSeconds = new(OneOf(s, int64(30), 0, 1, 7))
	}
	return p
}

func drawContainer(s *Source, name string, init bool) v1.Container {
	c := v1.Container{Name: name, Image: "image:1"}
	if policy := OneOf(s, "", "", "", "Always", "OnFailure", "Never"); policy != "" {
		c.RestartPolicy = new(v1.ContainerRestartPolicy(policy))
		for range OneOf(s, 0, 0, 1, 2) {
			c.RestartPolicyRules = append(c.RestartPolicyRules, drawRule(s))
		}
	}
	if sidecar := c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways; init && !sidecar {
		return c // it may have no probe and no hook
	}
	probe := func() *v1.Probe {
		if !s.Percent(35) {
			return nil
		}
		probe := &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}},
			PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
		}
		probe.TCPSocket.Port.IntVal = 80
		return probe
	}
	c.LivenessProbe, c.StartupProbe, c.ReadinessProbe = probe(), probe(), probe()
	for _, p := range []*v1.Probe{c.LivenessProbe, c.StartupProbe} {
		if p != nil && s.Percent(30) {
			p.TerminationGracePeriodSeconds = new(OneOf(s, int64(9), 1))
		}
	}
	if s.Percent(15) {
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}}
	}
	return c
}

func drawRule(s *Source) v1.ContainerRestartRule {
	rule := v1.ContainerRestartRule{
		Action: OneOf(s, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestart,
			v1.ContainerRestartRuleActionRestartAllContainers),
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: OneOf(s, v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn),
		},
	}
	for _, code := range exitCodes {
		if s.Percent(35) {
			rule.ExitCodes.Values = append(rule.ExitCodes.Values, code)
		}
	}
	return rule
}

func drawSandboxes(s *Source, in *situation) {
	n := OneOf(s, 1, 1, 1, 1, 0, 2, 3)
	for i := range n {
		box := pod.Sandbox{
			ID:          fmt.Sprintf("sandbox%d", n-i),
			Created:     begin.Add(time.Duration(n-i) * time.Minute),
			Attempt:     uint32(n - i - 1),
			HostNetwork: in.Pod.Spec.HostNetwork != s.Percent(4),
		}
		if i == 0 {
			box.Ready = !s.Percent(20)
		} else {
			box.Ready = s.Percent(10)
		}
		if !box.HostNetwork && !s.Percent(4) {
			box.IPs = OneOf(s, []string{"10.0.0.2"}, []string{"10.0.0.2", "fd00::2"}, []string{"fd00::2", "10.0.0.2"})
		}
		if !box.Ready && s.Percent(50) {
			in.Stopped[box.ID] = true
		}
		in.State.Sandboxes = append(in.State.Sandboxes, box)
	}
}

// drawInstances draws what the runtime has of a container, the newest first.
func drawInstances(s *Source, in *situation, name string) {
	n := OneOf(s, 0, 1, 1, 1, 2, 3)
	if name[0] == 'e' {
		n = min(n, 1) // it is never started twice
	}
	box := 0
	for i := range n {
		// Older instances are in this sandbox or an older one, which may be gone.
		if box < len(in.State.Sandboxes) && s.Percent(20) {
			box++
		}
		c := pod.Container{
			ID: fmt.Sprintf("%s-%d", name, n-i), Name: name, SandboxID: "gone",
			Created: begin.Add(time.Duration(n-i) * time.Hour),
			Image:   "image:1", ImageRef: "sha256:1",
			RestartCount: int32(n - i - 1),
		}
		if box < len(in.State.Sandboxes) {
			c.SandboxID = in.State.Sandboxes[box].ID
		}
		image := OneOf(s, "image:1", "image:1", "image:1", "image:1", "image:1", "image:1", "image:0")
		c.Hash = kubeHash(name, image)
		drawContainerState(s, &c, i == 0)
		drawResults(s, in, &c)
		in.State.Containers = append(in.State.Containers, c)
	}
}

var kubeHashes sync.Map

// kubeHash is the kubelet's hash of a container with this name and image.
func kubeHash(name, image string) uint64 {
	hash, known := kubeHashes.Load(name + image)
	if !known {
		hash = kubecontainer.HashContainer(&v1.Container{Name: name, Image: image})
		kubeHashes.Store(name+image, hash)
	}
	return hash.(uint64)
}

func drawContainerState(s *Source, c *pod.Container, newest bool) {
	running, exited := runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	states := []runtimeapi.ContainerState{exited}
	if !newest && s.Percent(3) {
		states[0] = running // its start was given up
	}
	if newest {
		states = []runtimeapi.ContainerState{running, running, running, exited, exited, exited, exited,
			runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_UNKNOWN}
	}
	c.State = OneOf(s, states...)
	switch c.State {
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		c.ExitCode = OneOf(s, exitCodes...)
		c.Started = c.Created.Add(time.Second)
		c.Finished = c.Started.Add(time.Duration(s.Intn(1500)) * time.Second)
		if c.Finished.After(now) {
			c.Finished = now
		}
		c.Reason = OneOf(s, "Completed", "Error", "OOMKilled")
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.Started = c.Created.Add(time.Second)
	}
}

func drawResults(s *Source, in *situation, c *pod.Container) {
	spec := specOf(&in.Pod.Spec, c.Name)
	for _, of := range []struct {
		probe *v1.Probe
		to    map[string]decide.Result
	}{{spec.LivenessProbe, in.Liveness}, {spec.StartupProbe, in.Startup}, {spec.ReadinessProbe, in.Readiness}} {
		if of.probe == nil {
			continue
		}
		if r := OneOf(s, decide.Success, decide.Success, decide.Failure, decide.Unknown); r != decide.Unknown {
			of.to[c.ID] = r
		}
	}
}

func specOf(spec *v1.PodSpec, name string) *v1.Container {
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.Name == name {
			return c
		}
	}
	for i := range spec.Containers {
		if c := &spec.Containers[i]; c.Name == name {
			return c
		}
	}
	for i := range spec.EphemeralContainers {
		if c := (*v1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon); c.Name == name {
			return c
		}
	}
	return nil
}

// clone is a situation of which the pod and the lists of the state may be changed.
func (in situation) clone() situation {
	in.Pod = in.Pod.DeepCopy()
	st := *in.State
	st.Sandboxes, st.Containers = slices.Clone(st.Sandboxes), slices.Clone(st.Containers)
	in.State = &st
	return in
}

// lastExit is the newest instance of a container that has ended, or nil.
func lastExit(st *pod.State, name string) *pod.Container {
	for i := range st.Containers {
		c := &st.Containers[i]
		if c.Name == name && c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			return c
		}
	}
	return nil
}

// drawRestarts draws restarts before the last end of a container.
func drawRestarts(s *Source, in *situation, name string) {
	last := lastExit(in.State, name)
	if last == nil {
		return
	}
	at := last.Finished.Add(-time.Duration(s.Intn(900)) * time.Second)
	for range s.Intn(7) {
		ended := at.Add(-time.Duration(s.Intn(300)) * time.Second)
		in.Restarts[name] = append([]restart{{ended, at}}, in.Restarts[name]...)
		at = ended.Add(-time.Duration(s.Intn(700)) * time.Second)
	}
}

// drawReported draws a status of the pod as it was reported.
func drawReported(s *Source, in *situation, r *v1.PodStatus) {
	for i := range in.Pod.Spec.InitContainers {
		drawContainerStatus(s, in.Pod.Spec.InitContainers[i].Name, &r.InitContainerStatuses)
	}
	for i := range in.Pod.Spec.Containers {
		drawContainerStatus(s, in.Pod.Spec.Containers[i].Name, &r.ContainerStatuses)
	}
	for i := range in.Pod.Spec.EphemeralContainers {
		drawContainerStatus(s, in.Pod.Spec.EphemeralContainers[i].Name, &r.EphemeralContainerStatuses)
	}
	if decide.CouldRestartAll(in.Pod) && s.Percent(15) {
		r.Conditions = append(r.Conditions, v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionTrue})
	}
	r.Phase = v1.PodPending
	if s.Percent(50) {
		r.Phase = v1.PodRunning
	}
	if s.Percent(4) {
		r.Phase = OneOf(s, v1.PodSucceeded, v1.PodFailed)
	}
}

// drawContainerStatus draws what was reported of a container: of an instance that the runtime has, or had.
func drawContainerStatus(s *Source, name string, to *[]v1.ContainerStatus) {
	kind := OneOf(s, "", "waiting", "running", "terminated")
	if kind == "" {
		return
	}
	r := v1.ContainerStatus{Name: name, Image: "image:1", RestartCount: int32(s.Intn(3))}
	id := "containerd://" + name + "-" + fmt.Sprint(s.Intn(4))
	started := metav1.NewTime(begin)
	end := func() *v1.ContainerStateTerminated {
		return &v1.ContainerStateTerminated{
			ExitCode: OneOf(s, exitCodes...), Reason: OneOf(s, "Completed", "Error", "ContainerStatusUnknown"),
			StartedAt: started, FinishedAt: metav1.NewTime(begin.Add(time.Minute)), ContainerID: id,
		}
	}
	switch kind {
	case "waiting":
		r.State.Waiting = &v1.ContainerStateWaiting{Reason: OneOf(s, "ContainerCreating", "CrashLoopBackOff")}
	case "running":
		r.ContainerID, r.State.Running = id, &v1.ContainerStateRunning{StartedAt: started}
		if name[0] != 'e' { // of these no probe says anything
			r.Ready, r.Started = s.Percent(50), new(s.Percent(50))
		}
	case "terminated":
		r.ContainerID, r.State.Terminated = id, end()
	}
	if s.Percent(25) {
		r.LastTerminationState.Terminated = end()
	}
	*to = append(*to, r)
}

// kubeStatus is the state in the kubelet's form.
func kubeStatus(p *v1.Pod, st *pod.State) *kubecontainer.PodStatus {
	k := &kubecontainer.PodStatus{ID: p.UID, Name: p.Name, Namespace: p.Namespace, TimeStamp: st.Read}
	active := ""
	for i := range st.Sandboxes {
		box := &st.Sandboxes[i]
		if i == 0 && box.Ready {
			active = box.ID
			if !box.HostNetwork {
				k.IPs = box.IPs
			}
		}
		k.SandboxStatuses = append(k.SandboxStatuses, kubeSandbox(p, box))
	}
	for i := range st.Containers {
		c := kubeContainer(&st.Containers[i])
		k.ContainerStatuses = append(k.ContainerStatuses, c)
		if st.Containers[i].SandboxID == active {
			k.ActiveContainerStatuses = append(k.ActiveContainerStatuses, c)
		}
	}
	return k
}

func kubeSandbox(p *v1.Pod, box *pod.Sandbox) *runtimeapi.PodSandboxStatus {
	options := &runtimeapi.NamespaceOption{}
	r := &runtimeapi.PodSandboxStatus{
		Id: box.ID, CreatedAt: box.Created.UnixNano(), State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID), Attempt: box.Attempt,
		},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: options}},
	}
	if box.Ready {
		r.State = runtimeapi.PodSandboxState_SANDBOX_READY
	}
	if box.HostNetwork {
		options.Network = runtimeapi.NamespaceMode_NODE
		return r
	}
	r.Network = &runtimeapi.PodSandboxNetworkStatus{}
	for i, ip := range box.IPs {
		if i == 0 {
			r.Network.Ip = ip
		} else {
			r.Network.AdditionalIps = append(r.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	return r
}

func kubeID(id string) kubecontainer.ContainerID {
	return kubecontainer.ContainerID{Type: "containerd", ID: id}
}

var kubeStates = map[runtimeapi.ContainerState]kubecontainer.State{
	runtimeapi.ContainerState_CONTAINER_CREATED: kubecontainer.ContainerStateCreated,
	runtimeapi.ContainerState_CONTAINER_RUNNING: kubecontainer.ContainerStateRunning,
	runtimeapi.ContainerState_CONTAINER_EXITED:  kubecontainer.ContainerStateExited,
	runtimeapi.ContainerState_CONTAINER_UNKNOWN: kubecontainer.ContainerStateUnknown,
}

func kubeContainer(c *pod.Container) *kubecontainer.Status {
	return &kubecontainer.Status{
		ID: kubeID(c.ID), Name: c.Name, State: kubeStates[c.State],
		CreatedAt: c.Created, StartedAt: c.Started, FinishedAt: c.Finished, ExitCode: int(c.ExitCode),
		Image: c.Image, ImageID: c.ImageID, ImageRef: c.ImageRef, Hash: c.Hash, RestartCount: int(c.RestartCount),
		Reason: c.Reason, Message: c.Message,
	}
}

// String is what matters of a situation, a line each.
func (in situation) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) }
	p := in.Pod.DeepCopy()
	text, err := yaml.Marshal(p)
	if err != nil {
		panic(err) // an API type always has a YAML form
	}
	line("%s", text)
	for _, box := range in.State.Sandboxes {
		line("%s: ready %v, attempt %d, host network %v, IPs %q, stopped %v", box.ID, box.Ready, box.Attempt,
			box.HostNetwork, box.IPs, in.Stopped[box.ID])
	}
	for _, c := range in.State.Containers {
		line("%s in %s: %s, exit %d %s, ended %s, restarts %d, hash %x, liveness %d, startup %d, readiness %d",
			c.ID, c.SandboxID, c.State, c.ExitCode, c.Reason, c.Finished.Format(time.DateTime), c.RestartCount, c.Hash,
			in.Liveness[c.ID], in.Startup[c.ID], in.Readiness[c.ID])
	}
	line("keeps %d dead", in.KeepDead)
	for name, list := range in.Restarts {
		for _, r := range list {
			line("%s: ended %s, started %s", name, r.ended.Format(time.DateTime), r.started.Format(time.DateTime))
		}
	}
	return b.String()
}
