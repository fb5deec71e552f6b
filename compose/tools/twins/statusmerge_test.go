package twins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/kubelet/status"

	podstatus "github.com/microlet/microlet/services/podsync/internal/pod/status"
	reports "github.com/microlet/microlet/services/podsync/internal/status/twin"
)

// delivery is a status on its way to the API, which has that of the pod.
type delivery struct {
	Pod  *v1.Pod
	Want v1.PodStatus
	// Finished: nothing of the pod is left.
	Finished bool
}

var _ = register(Pair[delivery, v1.PodStatus]{
	Name: "statusmerge",
	Generate: func(s *Source) delivery {
		in := drawStatusInput(s)
		d := delivery{Pod: in.Pod, Want: kubeletPodStatus(in), Finished: s.Percent(30)}
		if s.Percent(20) {
			d.Pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		}
		return d
	},
	Upstream: func(d delivery) v1.PodStatus {
		want := *d.Want.DeepCopy()
		if d.Finished {
			p := d.Pod.DeepCopy()
			p.Status = want // the pod that its worker has
			want = status.TwinTerminate(p, want)
		}
		return comparable(status.TwinMerge(d.Pod, *d.Pod.Status.DeepCopy(), want, !d.Finished && anyRuns(&want)))
	},
	Ours: func(d delivery) v1.PodStatus {
		want := *d.Want.DeepCopy()
		if d.Finished {
			want = podstatus.Terminate(d.Pod, want, now)
		}
		return comparable(*reports.Merged(d.Pod, &want).DeepCopy())
	},
	Branches: func(d delivery, out v1.PodStatus) []string {
		var did []string
		add := func(when bool, what string) {
			if when {
				did = append(did, what)
			}
		}
		_, disrupted := podutil.GetPodConditionFromList(out.Conditions, v1.DisruptionTarget)
		_, ready := podutil.GetPodConditionFromList(out.Conditions, v1.PodReady)
		add(ended(d.Want.Phase) && !ended(out.Phase), "delays the end")
		add(ended(out.Phase) && !ended(d.Pod.Status.Phase), "reports the end")
		add(disrupted != nil && ended(out.Phase), "reports a disruption")
		add(d.Finished && !ended(d.Want.Phase) && out.Phase == v1.PodFailed, "lets a pod fail that is gone")
		add(d.Finished && !ended(out.Phase), "lets a static pod have no end")
		add(ready != nil && ready.Reason == "PodFailed", "takes Ready back")
		add(d.Finished && lost(out.ContainerStatuses), "lets a container be lost")
		add(d.Finished && lost(out.InitContainerStatuses), "lets an init container be lost")
		return did
	},
	Wanted: []string{"delays the end", "reports the end", "reports a disruption", "lets a pod fail that is gone",
		"lets a static pod have no end", "takes Ready back", "lets a container be lost", "lets an init container be lost"},
	Differences: statusMergeDifferences,
	Break: func(_ delivery, out *v1.PodStatus) {
		out.Conditions = slices.DeleteFunc(out.Conditions, func(c v1.PodCondition) bool {
			return c.Type == "example.com/gate"
		})
	},
})

func ended(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

func lost(list []v1.ContainerStatus) bool {
	return slices.ContainsFunc(list, func(s v1.ContainerStatus) bool {
		return s.State.Terminated != nil && s.State.Terminated.Reason == "ContainerStatusUnknown"
	})
}

// anyRuns reports whether the status shows a container that runs. In the kubelet its pod workers know.
func anyRuns(s *v1.PodStatus) bool {
	return slices.ContainsFunc(slices.Concat(s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses),
		func(c v1.ContainerStatus) bool { return c.State.Running != nil })
}

// statusMergeDifferences are in differences.explained with their reasons.
var statusMergeDifferences = []Difference[delivery, v1.PodStatus]{
	{Name: "takes an init container that was killed for memory as failed", As: outOfMemoryDelivery},
	{Name: "takes an init container that was killed for memory as failed, and shows its exit code",
		Adjust: func(_ delivery, out *v1.PodStatus) bool {
			return eachEnd(out.InitContainerStatuses, func(end *v1.ContainerStateTerminated) bool {
				return replaceCode(end, killedForMemory, 0)
			})
		}},
	{Name: "believes the last end of an init container", As: believesTheLastEnd},
	{Name: "believes the last end of an init container, and shows the one before",
		Adjust: func(_ delivery, out *v1.PodStatus) bool {
			return eachEnd(out.InitContainerStatuses, func(end *v1.ContainerStateTerminated) bool {
				return replaceCode(end, beforeTheLast, 0)
			})
		}},
	{Name: "lets what is lost be neither ready nor started", Adjust: lostIsNotReady},
	{Name: "ends an ephemeral container that is lost", Adjust: func(d delivery, out *v1.PodStatus) bool {
		any := false
		for i := range out.EphemeralContainerStatuses {
			s := &out.EphemeralContainerStatuses[i]
			if !d.Finished || s.State.Running == nil {
				continue
			}
			any = true
			s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
				Reason: "ContainerStatusUnknown", ExitCode: 137,
				Message: "The container could not be located when the pod was terminated",
			}}
		}
		return any
	}},
	{Name: "says in the final status why the pod is not ready", Adjust: finalReason},
	{Name: "keeps an end that the API server would not let go", Adjust: keepsEnds},
}

func lostIsNotReady(d delivery, out *v1.PodStatus) bool {
	any := false
	for _, lists := range [][2][]v1.ContainerStatus{{out.ContainerStatuses, d.Want.ContainerStatuses},
		{out.InitContainerStatuses, d.Want.InitContainerStatuses}} {
		for i := range lists[0] {
			s := &lists[0][i]
			before, _ := podutil.GetContainerStatus(lists[1], s.Name)
			if !d.Finished || s.State.Terminated == nil || before.State.Terminated != nil || !s.Ready && !*s.Started {
				continue
			}
			s.Ready, s.Started, any = false, new(false), true
		}
	}
	return any
}

func finalReason(d delivery, out *v1.PodStatus) bool {
	reason := map[v1.PodPhase]string{v1.PodFailed: "PodFailed", v1.PodSucceeded: "PodCompleted"}[out.Phase]
	any := false
	for i := range out.Conditions {
		c := &out.Conditions[i]
		if !d.Finished || reason == "" || c.Type != v1.PodReady && c.Type != v1.ContainersReady || c.Reason == reason {
			continue
		}
		c.Status, c.Reason, c.Message, any = v1.ConditionFalse, reason, "", true
	}
	return any
}

func keepsEnds(d delivery, out *v1.PodStatus) bool {
	if podutil.AllContainersCouldRestart(&d.Pod.Spec) {
		return false
	}
	any := false
	for _, lists := range [][2][]v1.ContainerStatus{{out.ContainerStatuses, d.Pod.Status.ContainerStatuses},
		{out.InitContainerStatuses, d.Pod.Status.InitContainerStatuses},
		{out.EphemeralContainerStatuses, d.Pod.Status.EphemeralContainerStatuses}} {
		for i := range lists[0] {
			s := &lists[0][i]
			before, found := podutil.GetContainerStatus(lists[1], s.Name)
			if !found || before.State.Terminated == nil || s.State.Terminated != nil || s.Name[0] != 'e' &&
				podutil.ContainerShouldRestart(*specOf(&d.Pod.Spec, s.Name), d.Pod.Spec, before.State.Terminated.ExitCode) {
				continue
			}
			*s, any = *before.DeepCopy(), true
		}
	}
	return any
}

// eachEnd calls it for each end of the containers.
func eachEnd(list []v1.ContainerStatus, visit func(*v1.ContainerStateTerminated) bool) bool {
	any := false
	for i := range list {
		s := &list[i]
		for _, end := range []*v1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			any = end != nil && visit(end) || any
		}
	}
	return any
}

func replaceCode(end *v1.ContainerStateTerminated, from, to int32) bool {
	if end.ExitCode != from {
		return false
	}
	end.ExitCode = to
	return true
}

func outOfMemoryDelivery(d delivery) (delivery, bool) {
	d.Want = *d.Want.DeepCopy()
	any := eachEnd(d.Want.InitContainerStatuses, func(end *v1.ContainerStateTerminated) bool {
		return end.Reason == "OOMKilled" && replaceCode(end, 0, killedForMemory)
	})
	return d, any
}

// beforeTheLast is the exit code of a success that counts no more.
const beforeTheLast = 78

func believesTheLastEnd(d delivery) (delivery, bool) {
	d.Want = *d.Want.DeepCopy()
	any := false
	for i := range d.Want.InitContainerStatuses {
		s := &d.Want.InitContainerStatuses[i]
		if before := s.LastTerminationState.Terminated; before != nil && s.State.Terminated != nil &&
			s.State.Terminated.ExitCode != 0 {
			any = replaceCode(before, 0, beforeTheLast) || any
		}
	}
	return d, any
}
