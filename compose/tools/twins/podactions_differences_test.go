package twins

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	runtimeutil "k8s.io/kubernetes/pkg/kubelet/kuberuntime/util"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// podActionsDifferences are in differences.explained with their reasons.
var podActionsDifferences = []Difference[situation, podActions]{
	{Name: "asks the runtime, not the API, which end restarts all", As: runtimeSaysWhatRestartsAll},
	{Name: "runs an init container again that was killed for memory", As: func(in situation) (situation, bool) {
		if ending(in.Pod) {
			return in, false
		}
		return outOfMemory(in)
	}},
	{Name: "resets before it replaces the sandbox", As: resetsFirst},
	{Name: "knows the end of a container that was removed", As: remembersEnds},
	{Name: "takes no container along that has ended for good", As: leavesWhatHasEnded},
	{Name: "lets a restart rule count for a new sandbox too", As: rulesCount},
	{Name: "stops the last container for its probe before the pod", Adjust: stopsTheLastForItsProbe},
	{Name: "leaves a sandbox that it has stopped", Adjust: leavesStoppedSandboxes},
	{Name: "stops what is in unknown state with the pod", Adjust: stopsUnknown},
	{Name: "stops what runs beside a newer instance", Adjust: stopsDoubles},
	{Name: "does not stop what was never started", Adjust: stopsNothingCreated},
	{Name: "starts no ephemeral container in a pod that ends", Adjust: startsNothingAtTheEnd},
	{Name: "starts an ephemeral container that was only created", Adjust: startsCreatedEphemeral},
	{Name: "never starts an ephemeral container again", Adjust: startsEphemeralOnce},
	{Name: "keeps as many dead init containers as of others", Adjust: keepsDeadInit},
	{Name: "removes what was only created before the next start", Adjust: removesCreated},
}

func sandboxChanged(in situation) bool {
	changed, _, _, _ := runtimeutil.PodSandboxChanged(in.Pod, kubeStatus(in.Pod, in.State))
	return changed
}

func runtimeSaysWhatRestartsAll(in situation) (situation, bool) {
	if !podutil.AllContainersCouldRestart(&in.Pod.Spec) {
		return in, false
	}
	as, any := in.clone(), false
	for _, list := range [][]v1.ContainerStatus{as.Pod.Status.InitContainerStatuses, as.Pod.Status.ContainerStatuses} {
		for i := range list {
			if last := in.State.Latest(list[i].Name); last != nil && exited(last) && list[i].State.Terminated != nil {
				list[i].State.Terminated, any = nil, true
			}
		}
	}
	return as, any
}

func resetsFirst(in situation) (situation, bool) {
	if ending(in.Pod) || !restartsAll(in) || !sandboxChanged(in) {
		return in, false
	}
	as := in.clone()
	box := pod.Sandbox{ID: "one", Ready: true, HostNetwork: in.Pod.Spec.HostNetwork, IPs: []string{"10.0.0.2"}}
	as.State.Sandboxes = []pod.Sandbox{box}
	return as, true
}

func exited(c *pod.Container) bool { return c.State == runtimeapi.ContainerState_CONTAINER_EXITED }

// remembersEnds lets the runtime have what the API knows of.
func remembersEnds(in situation) (situation, bool) {
	if ending(in.Pod) || kubecontainer.ShouldAllContainersRestart(in.Pod, kubeStatus(in.Pod, in.State), &in.Pod.Status) {
		return in, false // then all begin again
	}
	as, any := in.clone(), false
	for _, c := range in.Pod.Spec.Containers {
		ended, found := podutil.GetContainerStatus(in.Pod.Status.ContainerStatuses, c.Name)
		if !found || ended.State.Terminated == nil || in.State.Latest(c.Name) != nil ||
			podutil.ContainerShouldRestart(c, in.Pod.Spec, ended.State.Terminated.ExitCode) {
			continue
		}
		as.State.Containers = append(as.State.Containers, pod.Container{
			ID: c.Name + "-removed", Name: c.Name, SandboxID: "gone", State: runtimeapi.ContainerState_CONTAINER_EXITED,
			ExitCode: ended.State.Terminated.ExitCode,
		})
		any = true
	}
	return as, any
}

// leavesWhatHasEnded lets what has ended for good be what the kubelet leaves behind: a success, to be run until then.
func leavesWhatHasEnded(in situation) (situation, bool) {
	if ending(in.Pod) || !sandboxChanged(in) {
		return in, false
	}
	as, any := in.clone(), false
	for i := range as.Pod.Spec.Containers {
		c := &as.Pod.Spec.Containers[i]
		at := slices.IndexFunc(as.State.Containers, func(other pod.Container) bool { return other.Name == c.Name })
		if at < 0 || !exited(&as.State.Containers[at]) ||
			podutil.ContainerShouldRestart(*c, in.Pod.Spec, as.State.Containers[at].ExitCode) {
			continue
		}
		c.RestartPolicy, c.RestartPolicyRules = new(v1.ContainerRestartPolicyOnFailure), nil
		as.State.Containers[at].ExitCode = 0
		any = true
	}
	return as, any
}

// rulesCount lets a success after which a rule restarts the container be no success.
func rulesCount(in situation) (situation, bool) {
	if ending(in.Pod) || !sandboxChanged(in) {
		return in, false
	}
	as, any := in.clone(), false
	for i := range as.Pod.Spec.Containers {
		c := &as.Pod.Spec.Containers[i]
		last := as.State.Latest(c.Name)
		if last != nil && exited(last) && last.ExitCode == 0 && c.RestartPolicy != nil &&
			*c.RestartPolicy == v1.ContainerRestartPolicyOnFailure &&
			podutil.ContainerShouldRestart(*c, in.Pod.Spec, 0) {
			last.ExitCode, c.RestartPolicyRules, any = 1, nil, true
		}
	}
	return as, any
}

// stopsTheLastForItsProbe does what the kubelet would if the probes of the last containers had not failed, and stops
// these.
func stopsTheLastForItsProbe(in situation, out *podActions) bool {
	if !out.Ends || ending(in.Pod) || sandboxChanged(in) {
		return false
	}
	t := newTwin(in)
	_, kills, _ := t.PodActions(t.ctx, in.Pod, t.status, restartsAll(in))
	var failed []kill
	healthy := in.clone()
	healthy.Liveness, healthy.Startup = maps.Clone(in.Liveness), maps.Clone(in.Startup)
	for id, k := range kills {
		if k.Name[0] == 'c' && (k.Reason == "LivenessProbe" || k.Reason == "StartupProbe") {
			failed = append(failed, t.kill(id, k.Name, k.Message, k.Reason, nil))
			delete(healthy.Liveness, id.ID)
			delete(healthy.Startup, id.ID)
		}
	}
	if len(failed) == 0 {
		return false
	}
	*out = kubeletPodActions(healthy)
	out.Kills = append(out.Kills, failed...)
	byID(out.Kills)
	return true
}

func leavesStoppedSandboxes(in situation, out *podActions) bool {
	before := len(out.StopSandboxes)
	out.StopSandboxes = slices.DeleteFunc(out.StopSandboxes, func(id string) bool {
		i := slices.IndexFunc(in.State.Sandboxes, func(box pod.Sandbox) bool { return box.ID == id })
		if in.State.Sandboxes[i].Ready {
			return false
		}
		if out.Ends {
			return in.Stopped[id]
		}
		return i > 0
	})
	any := len(out.StopSandboxes) != before
	if len(out.StopSandboxes) == 0 {
		out.StopSandboxes = nil
	}
	return any
}

func stopsUnknown(in situation, out *podActions) bool {
	if !out.Ends && !strings.HasPrefix(out.Sandbox, "attempt") {
		return false
	}
	t, any := newTwin(in), false
	for _, c := range in.State.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
			out.StopContainers = append(out.StopContainers, t.kill(kubeID(c.ID), c.Name, "", "Unknown", nil))
			any = true
		}
	}
	byID(out.StopContainers)
	return any
}

func stopsNothingCreated(in situation, out *podActions) bool {
	before := len(out.Kills)
	out.Kills = slices.DeleteFunc(out.Kills, func(k kill) bool {
		return slices.ContainsFunc(in.State.Containers, func(c pod.Container) bool {
			return c.ID == k.ID && c.State == runtimeapi.ContainerState_CONTAINER_CREATED
		})
	})
	any := len(out.Kills) != before
	if len(out.Kills) == 0 {
		out.Kills = nil
	}
	return any
}

func startsNothingAtTheEnd(_ situation, out *podActions) bool {
	if !out.Ends || len(out.Starts)+len(out.Waits) == 0 {
		return false
	}
	out.Starts, out.Waits, out.Sandbox = nil, nil, ""
	return true
}

func startsCreatedEphemeral(in situation, out *podActions) bool {
	if out.Ends || len(out.Resets) > 0 || sandboxChanged(in) {
		return false
	}
	var starts []string
	any := false
	for _, c := range in.Pod.Spec.EphemeralContainers {
		last := in.State.Latest(c.Name)
		switch {
		case slices.Contains(out.Starts, c.Name):
			starts = append(starts, c.Name)
		case last != nil && last.State == runtimeapi.ContainerState_CONTAINER_CREATED:
			starts, any = append(starts, c.Name), true
		}
	}
	if !any {
		return false
	}
	for _, name := range out.Starts {
		if name[0] != 'e' {
			starts = append(starts, name)
		}
	}
	out.Starts, out.Sandbox = starts, in.State.Sandboxes[0].ID
	return true
}

func startsEphemeralOnce(in situation, out *podActions) bool {
	before := len(out.Starts)
	out.Starts = slices.DeleteFunc(out.Starts, func(name string) bool {
		s, found := podutil.GetContainerStatus(in.Pod.Status.EphemeralContainerStatuses, name)
		return found && name[0] == 'e' && in.State.Latest(name) == nil && s.State.Waiting == nil
	})
	if len(out.Starts) == before {
		return false
	}
	if len(out.Starts) == 0 {
		out.Starts = nil
		if !strings.HasPrefix(out.Sandbox, "attempt") {
			out.Sandbox = ""
		}
	}
	return true
}

// killedForMemory is an exit code that is like 0 in the rules of containers, and a failure elsewhere.
const killedForMemory = 77

func wasKilledForMemory(spec *v1.Container, c *pod.Container) bool {
	return c.Name[0] == 'i' && !isSidecar(spec) && exited(c) && c.ExitCode == 0 && c.Reason == "OOMKilled"
}

// outOfMemory lets the exit code of init containers of which a process was killed for memory say that they have failed.
func outOfMemory(in situation) (situation, bool) {
	as, any := in.clone(), false
	for i := range as.State.Containers {
		c := &as.State.Containers[i]
		spec := specOf(&as.Pod.Spec, c.Name)
		if !wasKilledForMemory(spec, c) {
			continue
		}
		c.ExitCode, any = killedForMemory, true
		for _, rule := range spec.RestartPolicyRules {
			if values := &rule.ExitCodes.Values; slices.Contains(*values, 0) && !slices.Contains(*values, killedForMemory) {
				*values = append(*values, killedForMemory)
			}
		}
	}
	return as, any
}

// stopsDoubles stops what runs while its sandbox is kept, and is not the instance that counts.
func stopsDoubles(in situation, out *podActions) bool {
	if out.Ends || len(out.Resets) > 0 || sandboxChanged(in) || restartsAll(in) {
		return false
	}
	t, any := newTwin(in), false
	for i := range in.State.Containers {
		c := &in.State.Containers[i]
		counts := in.State.Latest(c.Name)
		if c.Name[0] == 'i' && counts.SandboxID != in.State.Sandboxes[0].ID {
			counts = nil
		}
		if c.Running() && c != counts {
			out.Kills = append(out.Kills, t.kill(kubeID(c.ID), c.Name, "", "", nil))
			any = true
		}
	}
	byID(out.Kills)
	return any
}

// keepsDeadInit keeps the newest ends of init containers in a sandbox that stays.
func keepsDeadInit(in situation, out *podActions) bool {
	if strings.HasPrefix(out.Sandbox, "attempt") {
		return false
	}
	before, kept := len(out.Removes), map[string]int{}
	for i := range in.State.Containers {
		c := &in.State.Containers[i]
		if c.Name[0] == 'i' && exited(c) && kept[c.Name] < max(in.KeepDead, 1) {
			kept[c.Name]++
			out.Removes = slices.DeleteFunc(out.Removes, func(id string) bool { return id == c.ID })
		}
	}
	if len(out.Removes) == before {
		return false
	}
	if len(out.Removes) == 0 {
		out.Removes = nil
	}
	return true
}

func removesCreated(in situation, out *podActions) bool {
	before := len(out.Removes)
	for _, name := range out.Starts {
		last := in.State.Latest(name)
		if last != nil && last.State == runtimeapi.ContainerState_CONTAINER_CREATED &&
			!slices.Contains(out.Removes, last.ID) {
			out.Removes = append(out.Removes, last.ID)
		}
	}
	slices.Sort(out.Removes)
	return len(out.Removes) != before
}
