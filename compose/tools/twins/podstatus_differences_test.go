package twins

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// podStatusDifferences are in differences.explained with their reasons.
var podStatusDifferences = []Difference[statusInput, v1.PodStatus]{
	{Name: "asks the runtime, not the API, which end restarts all", As: runtimeSaysWhatRestartedAll},
	{Name: "keeps the reported end of what is in unknown state", As: keepsReportedEnds},
	{Name: "takes an init container that was killed for memory as failed", As: outOfMemoryStatus},
	{Name: "lets no ephemeral container wait that has run", As: func(in statusInput) (statusInput, bool) {
		waiting, before := maps.Clone(in.Waiting), in.old()
		for _, c := range in.Pod.Spec.EphemeralContainers {
			last := in.State.Latest(c.Name)
			s, found := podutil.GetContainerStatus(before.EphemeralContainerStatuses, c.Name)
			if last != nil && last.State != runtimeapi.ContainerState_CONTAINER_CREATED ||
				last == nil && found && s.State.Waiting == nil {
				delete(waiting, c.Name)
			}
		}
		any := len(waiting) != len(in.Waiting)
		in.Waiting = waiting
		return in, any
	}},
	{Name: "lets nothing wait that has ended for good", As: func(in statusInput) (statusInput, bool) {
		waiting, before := maps.Clone(in.Waiting), in.old()
		ended := before.ContainerStatuses
		if !kubecontainer.ShouldAllContainersRestart(in.Pod, kubeStatus(in.Pod, in.State), before) {
			ended = slices.Concat(ended, before.InitContainerStatuses) // otherwise these wait to begin again
		}
		for _, s := range ended {
			if s.State.Terminated != nil && in.State.Latest(s.Name) == nil &&
				!podutil.ContainerShouldRestart(*specOf(&in.Pod.Spec, s.Name), in.Pod.Spec, s.State.Terminated.ExitCode) {
				delete(waiting, s.Name)
			}
		}
		any := len(waiting) != len(in.Waiting)
		in.Waiting = waiting
		return in, any
	}},
	{Name: "lets nothing wait in a pod that has ended", As: func(in statusInput) (statusInput, bool) {
		if !in.Terminal || len(in.Waiting) == 0 {
			return in, false
		}
		in.Waiting = nil
		return in, true
	}},
	{Name: "shows as the last state an end only", As: lastStateIsAnEnd},
	{Name: "holds what the probes of a container said last", As: holdsResults},
	{Name: "takes a sidecar as started at once", As: sidecarsHaveStarted},
	{Name: "keeps the address until a sandbox of the pod's network has one", Adjust: keepsAddress},
	{Name: "shows no ID of a container that was reset", Adjust: func(in statusInput, out *v1.PodStatus) bool {
		return in.each(out, func(_ *v1.Container, s, _ *v1.ContainerStatus) bool {
			last := s.LastTerminationState.Terminated
			if last == nil || last.Reason != "RestartingAllContainers" || s.ContainerID == "" || in.State.Latest(s.Name) != nil {
				return false
			}
			s.ContainerID = ""
			return true
		})
	}},
	{Name: "lets a sidecar wait that ended well", Adjust: sidecarsWait},
	{Name: "lets an init container wait that was killed for memory and runs again", Adjust: waitsAfterMemory},
	{Name: "takes an init container that was killed for memory as failed, and shows its exit code", Adjust: showsExitCode},
	{Name: "gives AllContainersRestarting its generation", Adjust: generationOfAllRestarting},
	{Name: "counts from the instance that is lost", Adjust: countsFromTheLost},
}

func generationOfAllRestarting(in statusInput, out *v1.PodStatus) bool {
	for i := range out.Conditions {
		if c := &out.Conditions[i]; c.Type == v1.AllContainersRestarting {
			c.ObservedGeneration = in.Pod.Generation
			return true
		}
	}
	return false
}

// each calls it for each container of the pod with its status, and the one that was reported before, if there is one.
func (in statusInput) each(out *v1.PodStatus, visit func(spec *v1.Container, s, old *v1.ContainerStatus) bool) bool {
	any := false
	before := in.old()
	for _, lists := range [][2][]v1.ContainerStatus{
		{out.InitContainerStatuses, before.InitContainerStatuses}, {out.ContainerStatuses, before.ContainerStatuses},
		{out.EphemeralContainerStatuses, before.EphemeralContainerStatuses},
	} {
		for i := range lists[0] {
			s := &lists[0][i]
			var old *v1.ContainerStatus
			if status, found := podutil.GetContainerStatus(lists[1], s.Name); found {
				old = &status
			}
			any = visit(specOf(&in.Pod.Spec, s.Name), s, old) || any
		}
	}
	return any
}

func countsFromTheLost(in statusInput, out *v1.PodStatus) bool {
	return in.each(out, func(spec *v1.Container, s, old *v1.ContainerStatus) bool {
		c := in.State.Latest(spec.Name)
		if c == nil || c.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN || old == nil || old.State.Running == nil ||
			c.RestartCount <= old.RestartCount {
			return false
		}
		s.RestartCount = c.RestartCount + 1
		return true
	})
}

// knownEnd is how an instance in unknown state has ended according to what was reported of it, or nil.
func (in statusInput) knownEnd(c *pod.Container) *v1.ContainerStateTerminated {
	if c.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		return nil
	}
	before := in.old()
	for _, list := range [][]v1.ContainerStatus{before.InitContainerStatuses, before.ContainerStatuses,
		before.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == c.Name && list[i].ContainerID == "containerd://"+c.ID {
				return list[i].State.Terminated
			}
		}
	}
	return nil
}

// keepsReportedEnds lets the runtime say of an instance what was reported of it.
func keepsReportedEnds(in statusInput) (statusInput, bool) {
	as, any := in, false
	as.situation = in.clone()
	for i := range as.State.Containers {
		c := &as.State.Containers[i]
		if end := in.knownEnd(c); end != nil {
			c.State, c.ExitCode, c.Reason = runtimeapi.ContainerState_CONTAINER_EXITED, end.ExitCode, end.Reason
			c.Message, c.Started, c.Finished = end.Message, end.StartedAt.Time, end.FinishedAt.Time
			any = true
		}
	}
	return as, any
}

// holdsResults lets the prober say of an instance that it has not probed what was reported of it.
func holdsResults(in statusInput) (statusInput, bool) {
	any := false
	readiness, startup := maps.Clone(in.Readiness), maps.Clone(in.Startup)
	before := in.old()
	for _, s := range slices.Concat(before.InitContainerStatuses, before.ContainerStatuses) {
		c := in.State.Latest(s.Name)
		if c == nil || s.ContainerID != "containerd://"+c.ID || s.State.Running == nil {
			continue
		}
		if _, known := readiness[c.ID]; !known && s.Ready {
			readiness[c.ID], any = decide.Success, true
		}
		if _, known := startup[c.ID]; !known && s.Started != nil && *s.Started {
			startup[c.ID], any = decide.Success, true
		}
	}
	in.Readiness, in.Startup = readiness, startup
	return in, any
}

// sidecarsHaveStarted lets the status before say of sidecars what their probes say now.
func sidecarsHaveStarted(in statusInput) (statusInput, bool) {
	as, any := in, false
	as.situation = in.clone()
	if in.Old != nil {
		as.Old = in.Old.DeepCopy()
	}
	before := as.old()
	for i := range in.Pod.Spec.InitContainers {
		spec := &in.Pod.Spec.InitContainers[i]
		c := in.State.Latest(spec.Name)
		if !isSidecar(spec) || c == nil || !c.Running() {
			continue
		}
		at := slices.IndexFunc(before.InitContainerStatuses, func(s v1.ContainerStatus) bool { return s.Name == spec.Name })
		if at < 0 {
			at = len(before.InitContainerStatuses)
			before.InitContainerStatuses = append(before.InitContainerStatuses, v1.ContainerStatus{
				Name: spec.Name, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}},
			})
		}
		before.InitContainerStatuses[at].Started = new(spec.StartupProbe == nil || in.Startup[c.ID] == decide.Success)
		any = true
	}
	return as, any
}

func keepsAddress(in statusInput, out *v1.PodStatus) bool {
	old, box := in.old(), in.State.ReadySandbox()
	if !in.Pod.Spec.HostNetwork {
		if out.PodIP != "" || old.PodIP == "" || box != nil && !box.HostNetwork {
			return false
		}
		out.PodIP, out.PodIPs = old.PodIP, old.PodIPs
		return true
	}
	if box == nil || box.HostNetwork || len(box.IPs) == 0 {
		return false
	}
	out.PodIP, out.PodIPs = old.PodIP, slices.Clone(old.PodIPs)
	if out.PodIP == "" {
		out.PodIP, out.PodIPs = out.HostIP, []v1.PodIP{{IP: out.HostIP}}
	}
	if len(out.HostIPs) == 2 && len(out.PodIPs) == 1 {
		out.PodIPs = append(out.PodIPs, v1.PodIP{IP: out.HostIPs[1].IP})
	}
	return true
}

// runtimeSaysWhatRestartedAll lets the container alone restart after an end of which only the API knows.
func runtimeSaysWhatRestartedAll(in statusInput) (statusInput, bool) {
	as, any := in, false
	as.situation = in.clone()
	before := in.old()
	for _, s := range slices.Concat(before.InitContainerStatuses, before.ContainerStatuses) {
		last := in.State.Latest(s.Name)
		if last == nil || !exited(last) || s.State.Terminated == nil {
			continue
		}
		spec := specOf(&as.Pod.Spec, s.Name)
		code := s.State.Terminated.ExitCode
		if asksForAll(spec, last.ExitCode) || !asksForAll(spec, code) {
			continue
		}
		spec.RestartPolicyRules = slices.Insert(spec.RestartPolicyRules, 0, v1.ContainerRestartRule{
			Action: v1.ContainerRestartRuleActionRestart,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
				Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{code},
			},
		})
		any = true
	}
	return as, any
}

func asksForAll(c *v1.Container, code int32) bool {
	rule, found := podutil.FindMatchingContainerRestartRule(*c, code)
	return found && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}

func sidecarsWait(in statusInput, out *v1.PodStatus) bool {
	return in.each(out, func(spec *v1.Container, s, _ *v1.ContainerStatus) bool {
		last := in.State.Latest(spec.Name)
		why, waits := in.Waiting[spec.Name]
		if spec.Name[0] != 'i' || !isSidecar(spec) || !waits || in.Pod.DeletionTimestamp != nil ||
			last == nil || !exited(last) || last.ExitCode != 0 {
			return false
		}
		s.LastTerminationState = s.State
		s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: why[0], Message: why[1]}}
		return true
	})
}

func outOfMemoryStatus(in statusInput) (statusInput, bool) {
	as, any := outOfMemory(in.situation)
	in.situation = as
	return in, any
}

// waitsAfterMemory lets wait what the kubelet shows as ended, with an exit code that is replaced in the end.
func waitsAfterMemory(in statusInput, out *v1.PodStatus) bool {
	if in.Terminal || in.Pod.DeletionTimestamp != nil {
		return false
	}
	return in.each(out, func(spec *v1.Container, s, _ *v1.ContainerStatus) bool {
		last := in.State.Latest(spec.Name)
		if last == nil || !exited(last) || last.ExitCode != killedForMemory || s.State.Terminated == nil ||
			podutil.ContainerShouldRestart(*spec, in.Pod.Spec, 0) ||
			!podutil.ContainerShouldRestart(*spec, in.Pod.Spec, killedForMemory) {
			return false
		}
		s.LastTerminationState = s.State
		s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}
		return true
	})
}

// showsExitCode shows the one that outOfMemory has replaced.
func showsExitCode(in statusInput, out *v1.PodStatus) bool {
	return in.each(out, func(_ *v1.Container, s, _ *v1.ContainerStatus) bool {
		any := false
		for _, end := range []*v1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if end != nil && end.ExitCode == killedForMemory {
				end.ExitCode, any = 0, true
			}
		}
		return any
	})
}

// lastStateIsAnEnd leaves out of the runtime what is older than an instance that should not be there any more.
func lastStateIsAnEnd(in statusInput) (statusInput, bool) {
	before, left := map[string]int{}, map[string]bool{}
	as, any := in, false
	as.situation = in.clone()
	as.State.Containers = slices.DeleteFunc(as.State.Containers, func(c pod.Container) bool {
		before[c.Name]++
		left[c.Name] = left[c.Name] || before[c.Name] == 2 && !exited(&c)
		any = any || left[c.Name]
		return left[c.Name]
	})
	return as, any
}
