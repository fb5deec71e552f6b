package twins

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/prober"
	proberesults "k8s.io/kubernetes/pkg/kubelet/prober/results"
	"k8s.io/kubernetes/pkg/kubelet/status"

	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
	podstatus "github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// statusInput is what a pod's status is generated from.
type statusInput struct {
	situation
	// Old is the status that was generated last; nil if there is none.
	Old      *v1.PodStatus
	Terminal bool
	// Waiting are reason and message of what could not be started.
	Waiting map[string][2]string
	HostIPs []string
}

var _ = register(Pair[statusInput, v1.PodStatus]{
	Name:     "podstatus",
	Generate: drawStatusInput,
	Upstream: kubeletPodStatus,
	Ours:     ourPodStatus,
	Branches: podStatusBranches,
	Wanted: []string{
		"phase Pending", "phase Running", "phase Succeeded", "phase Failed", "waits with a reason",
		"a container is lost", "a container vanished", "an init container is forgotten", "restarts all",
		"Initialized False", "Initialized True", "Ready True", "Ready False ReadinessGatesNotReady",
		"Ready False ContainersNotReady", "Ready False PodCompleted", "Ready False PodFailed",
		"PodReadyToStartContainers False", "AllContainersRestarting True", "two addresses",
	},
	Differences: podStatusDifferences,
	Break: func(in statusInput, out *v1.PodStatus) {
		for i := range out.ContainerStatuses {
			if out.ContainerStatuses[i].LastTerminationState.Terminated != nil {
				out.ContainerStatuses[i].RestartCount++
			}
		}
	},
	Show: statusInput.String,
})

func drawStatusInput(s *Source) statusInput {
	r := statusInput{situation: drawSituation(s), Terminal: s.Percent(20), Waiting: map[string][2]string{}}
	if s.Percent(20) {
		r.Pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	}
	drawConditions(s, &r.Pod.Status)
	if s.Percent(40) {
		r.Old = &v1.PodStatus{}
		drawReported(s, &r.situation, r.Old)
		drawConditions(s, r.Old)
	}
	for _, name := range containerNames(&r.Pod.Spec) {
		if s.Percent(25) {
			r.Waiting[name] = [2]string{OneOf(s, "CrashLoopBackOff", "ImagePullBackOff"), "because"}
		}
	}
	r.HostIPs = OneOf(s, []string{"192.0.2.1"}, []string{"192.0.2.1", "2001:db8::1"})
	if r.Pod.Spec.HostNetwork && r.old().PodIP != "" {
		r.old().PodIP, r.old().PodIPs = r.HostIPs[0], []v1.PodIP{{IP: r.HostIPs[0]}}
	}
	for i := range r.State.Containers {
		if c := &r.State.Containers[i]; r.knownEnd(c) != nil {
			// These do not come together: keepsReportedEnds could not say what the kubelet would make of both.
			delete(r.Waiting, c.Name)
			if decide.CouldRestartAll(r.Pod) || c.Name[0] == 'c' && len(r.Pod.Spec.InitContainers) > 0 {
				c.State = runtimeapi.ContainerState_CONTAINER_RUNNING
			}
		}
	}
	return r
}

func drawConditions(s *Source, r *v1.PodStatus) {
	for _, c := range []v1.PodCondition{
		{Type: v1.PodInitialized}, {Type: v1.PodReady}, {Type: v1.DisruptionTarget, Reason: "TerminationByKubelet"},
		{Type: "example.com/gate"},
	} {
		if s.Percent(20) {
			c.Status = OneOf(s, v1.ConditionTrue, v1.ConditionFalse)
			r.Conditions = append(r.Conditions, c)
		}
	}
	if s.Percent(30) {
		r.Reason, r.Message = "Because", "of something"
	}
	if s.Percent(30) {
		r.PodIP, r.PodIPs = "10.0.0.7", []v1.PodIP{{IP: "10.0.0.7"}}
	}
}

func (r statusInput) String() string {
	return r.situation.String() + fmt.Sprintf("old: %+v\nterminal: %v, waiting: %v, host: %q\n", r.Old, r.Terminal,
		r.Waiting, r.HostIPs)
}

func (r statusInput) old() *v1.PodStatus {
	if r.Old != nil {
		return r.Old
	}
	return &r.Pod.Status
}

func kubeletPodStatus(r statusInput) v1.PodStatus {
	k := kubeStatus(r.Pod, r.State)
	if len(k.IPs) == 0 && !anyReady(r.situation) {
		// PLEG's cache keeps the addresses of a pod whose sandboxes have ended.
		for _, ip := range r.old().PodIPs {
			k.IPs = append(k.IPs, ip.IP)
		}
	}
	ready := probed{results{by: r.Readiness}, r.situation,
		func(c *v1.Container) *v1.Probe { return c.ReadinessProbe }, proberesults.Failure}
	started := probed{results{by: r.Startup}, r.situation,
		func(c *v1.Container) *v1.Probe { return c.StartupProbe }, proberesults.Unknown}
	t := kubelet.TwinStatus{
		Old: r.Old, Waiting: r.Waiting, HostIPs: r.HostIPs,
		Probes: prober.TwinManager(r.Pod, ready, started, time.Time{}),
	}
	s := t.PodStatus(context.Background(), r.Pod.DeepCopy(), k, r.Terminal)
	status.TwinNormalize(r.Pod, &s)
	return comparable(s)
}

func anyReady(in situation) bool {
	for _, box := range in.State.Sandboxes {
		if box.Ready {
			return true
		}
	}
	return false
}

// probed are results of a kubelet that has begun to probe: a container with a probe has one, at first the initial one.
type probed struct {
	results
	in      situation
	probe   func(*v1.Container) *v1.Probe
	initial proberesults.Result
}

func (r probed) Get(id kubecontainer.ContainerID) (proberesults.Result, bool) {
	name, _, _ := strings.Cut(id.ID, "-")
	c := specOf(&r.in.Pod.Spec, name)
	if c == nil || r.probe(c) == nil {
		return 0, false
	}
	if result, found := r.results.Get(id); found {
		return result, true
	}
	return r.initial, true
}

func ourPodStatus(r statusInput) v1.PodStatus {
	waiting := map[string]podstatus.Waiting{}
	for name, why := range r.Waiting {
		waiting[name] = podstatus.Waiting{Reason: why[0], Message: why[1]}
	}
	return comparable(podstatus.Generate(r.Pod, r.State, podstatus.Inputs{
		Old: r.Old, Now: now, Terminal: r.Terminal, Waiting: waiting, HostIPs: r.HostIPs,
		Readiness: r.Readiness, Startup: r.Startup,
	}))
}

// comparable leaves out what the kubelet's status manager adds later, and what it reads from cgroups.
func comparable(s v1.PodStatus) v1.PodStatus {
	s.StartTime, s.ObservedGeneration, s.Resources, s.AllocatedResources = nil, 0, nil, nil
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	slices.SortFunc(s.Conditions, func(a, b v1.PodCondition) int { return cmp.Compare(a.Type, b.Type) })
	for _, list := range []*[]v1.ContainerStatus{&s.ContainerStatuses, &s.InitContainerStatuses,
		&s.EphemeralContainerStatuses} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return s
}

func podStatusBranches(r statusInput, s v1.PodStatus) []string {
	did := []string{"phase " + string(s.Phase)}
	for _, c := range s.Conditions {
		what := string(c.Type) + " " + string(c.Status)
		did = append(did, what)
		if c.Reason != "" {
			did = append(did, what+" "+c.Reason)
		}
	}
	add := func(when bool, what string) {
		if when && !slices.Contains(did, what) {
			did = append(did, what)
		}
	}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		ended, last := c.State.Terminated, c.LastTerminationState.Terminated
		add(c.State.Waiting != nil && c.State.Waiting.Message == "because", "waits with a reason")
		add(ended != nil && ended.Message == "The container could not be located when the pod was terminated",
			"a container is lost")
		add(last != nil && strings.HasPrefix(last.Message, "The container could not be located when the pod was deleted"),
			"a container vanished")
		add(ended != nil && strings.HasPrefix(ended.Message, "Unable to get init container status"),
			"an init container is forgotten")
		add(last != nil && last.Reason == "RestartingAllContainers", "restarts all")
	}
	add(len(s.PodIPs) == 2, "two addresses")
	return did
}
