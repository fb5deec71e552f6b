package crilist

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// The states in the order in which what changes meanwhile passes through them, so that nothing is missed.
var (
	sandboxStates = []runtimeapi.PodSandboxState{
		runtimeapi.PodSandboxState_SANDBOX_READY, runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
	}
	containerStates = []runtimeapi.ContainerState{
		runtimeapi.ContainerState_CONTAINER_UNKNOWN, runtimeapi.ContainerState_CONTAINER_CREATED,
		runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED,
	}
)

// sandboxParts lists sandboxes pod by pod, those of one pod state by state, and those in one state one by one.
func (l *Lister) sandboxParts(ctx context.Context,
	f *runtimeapi.PodSandboxFilter) iter.Seq2[*runtimeapi.PodSandbox, error] {
	return parts(func() ([]*runtimeapi.PodSandboxFilter, error) {
		var filters []*runtimeapi.PodSandboxFilter
		switch labels := f.GetLabelSelector(); {
		case f.GetId() == "" && labels[kubelettypes.KubernetesPodUIDLabel] == "":
			uids, strangers, err := l.known()
			if err != nil {
				return nil, err
			}
			for _, uid := range uids {
				one := maps.Clone(labels)
				if one == nil {
					one = map[string]string{}
				}
				one[kubelettypes.KubernetesPodUIDLabel] = uid
				filters = append(filters, &runtimeapi.PodSandboxFilter{State: f.GetState(), LabelSelector: one})
			}
			for _, id := range strangers {
				filters = append(filters,
					&runtimeapi.PodSandboxFilter{Id: id, State: f.GetState(), LabelSelector: labels})
			}
		case f.GetState() == nil:
			for _, state := range sandboxStates {
				filters = append(filters, &runtimeapi.PodSandboxFilter{
					Id: f.GetId(), State: &runtimeapi.PodSandboxStateValue{State: state}, LabelSelector: labels,
				})
			}
		case f.GetId() == "":
			ids, err := l.sandboxesOf(ctx, labels[kubelettypes.KubernetesPodUIDLabel])
			if err != nil {
				return nil, err
			}
			for _, id := range ids {
				filters = append(filters, &runtimeapi.PodSandboxFilter{Id: id, State: f.GetState(), LabelSelector: labels})
			}
		default:
			return nil, errSmallest("sandboxes", labels)
		}
		return filters, nil
	}, func(f *runtimeapi.PodSandboxFilter) iter.Seq2[*runtimeapi.PodSandbox, error] {
		return l.Sandboxes(ctx, f)
	},
		(*runtimeapi.PodSandbox).GetId)
}

// containerParts lists containers sandbox by sandbox, and those of one sandbox state by state.
func (l *Lister) containerParts(ctx context.Context,
	f *runtimeapi.ContainerFilter) iter.Seq2[*runtimeapi.Container, error] {
	split := func() (filters []*runtimeapi.ContainerFilter, err error) {
		one := func(sandbox string, state *runtimeapi.ContainerStateValue) {
			filters = append(filters, &runtimeapi.ContainerFilter{
				Id: f.GetId(), PodSandboxId: sandbox, State: state, LabelSelector: f.GetLabelSelector(),
			})
		}
		switch {
		case f.GetId() == "" && f.GetPodSandboxId() == "":
			err = l.bySandbox(ctx, f.GetLabelSelector(), func(id string) { one(id, f.GetState()) })
		case f.GetState() == nil:
			for _, state := range containerStates {
				one(f.GetPodSandboxId(), &runtimeapi.ContainerStateValue{State: state})
			}
		default:
			err = errSmallest("containers", f.GetLabelSelector())
		}
		return filters, err
	}
	return parts(split,
		func(f *runtimeapi.ContainerFilter) iter.Seq2[*runtimeapi.Container, error] {
			return l.Containers(ctx, f)
		},
		(*runtimeapi.Container).GetId)
}

// sandboxStatsParts lists the figures of sandboxes one by one.
func (l *Lister) sandboxStatsParts(ctx context.Context,
	f *runtimeapi.PodSandboxStatsFilter) iter.Seq2[*runtimeapi.PodSandboxStats, error] {
	labels := f.GetLabelSelector()
	return parts(func() (filters []*runtimeapi.PodSandboxStatsFilter, err error) {
		if f.GetId() != "" {
			return nil, errSmallest("figures", labels)
		}
		err = l.bySandbox(ctx, labels, func(id string) {
			filters = append(filters, &runtimeapi.PodSandboxStatsFilter{Id: id, LabelSelector: labels})
		})
		return filters, err
	}, func(f *runtimeapi.PodSandboxStatsFilter) iter.Seq2[*runtimeapi.PodSandboxStats, error] {
		return l.SandboxStats(ctx, f)
	}, func(s *runtimeapi.PodSandboxStats) string { return s.GetAttributes().GetId() })
}

// containerStatsParts lists the figures of containers sandbox by sandbox.
func (l *Lister) containerStatsParts(ctx context.Context,
	f *runtimeapi.ContainerStatsFilter) iter.Seq2[*runtimeapi.ContainerStats, error] {
	split := func() (filters []*runtimeapi.ContainerStatsFilter, err error) {
		add := func(id string) {
			filters = append(filters,
				&runtimeapi.ContainerStatsFilter{PodSandboxId: id, LabelSelector: f.GetLabelSelector()})
		}
		if f.GetId() != "" || f.GetPodSandboxId() != "" {
			return nil, errSmallest("figures", f.GetLabelSelector())
		}
		err = l.bySandbox(ctx, f.GetLabelSelector(), add)
		return filters, err
	}
	list := func(f *runtimeapi.ContainerStatsFilter) iter.Seq2[*runtimeapi.ContainerStats, error] {
		return l.ContainerStats(ctx, f)
	}
	return parts(split, list, func(s *runtimeapi.ContainerStats) string { return s.GetAttributes().GetId() })
}

// parts lists one filter after the other, and of what two of them match the first.
func parts[F, T any](split func() ([]F, error), list func(F) iter.Seq2[T, error],
	id func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		filters, err := split()
		if err != nil {
			give(nil, err, yield)
			return
		}
		seen := map[string]bool{}
		for _, f := range filters {
			for item, err := range list(f) {
				if err != nil {
					give(nil, err, yield)
					return
				}
				if seen[id(item)] {
					continue
				}
				seen[id(item)] = true
				if !yield(item, nil) {
					return
				}
			}
		}
	}
}

// bySandbox calls add with the ID of each sandbox, or of each of one pod's if the labels name the pod.
func (l *Lister) bySandbox(ctx context.Context, labels map[string]string, add func(id string)) error {
	var f *runtimeapi.PodSandboxFilter
	if uid, ok := labels[kubelettypes.KubernetesPodUIDLabel]; ok {
		f = &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: uid}}
	}
	for s, err := range l.Sandboxes(ctx, f) {
		if err != nil {
			return err
		}
		add(s.GetId())
	}
	return nil
}

// sandboxesOf returns the IDs of the sandboxes of a pod that has more in one state than a message can have. So many
// dead ones there are only as long as ended containers keep them, which are small and name them. A dead one that no
// container keeps, and that came after the last list that was whole, is not among them: it shows once the others are
// removed.
func (l *Lister) sandboxesOf(ctx context.Context, uid string) ([]string, error) {
	labels := map[string]string{kubelettypes.KubernetesPodUIDLabel: uid}
	l.mu.Lock()
	ids := slices.Clone(l.sandboxes[uid])
	l.mu.Unlock()
	for _, state := range containerStates {
		answer, err := l.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: state}, LabelSelector: labels,
		}})
		if status.Code(err) == codes.ResourceExhausted {
			return nil, errSmallest("containers", labels)
		}
		if err != nil {
			return nil, fmt.Errorf("find the sandboxes of pod %q by its containers: %w", uid, err)
		}
		for _, c := range answer.GetContainers() {
			ids = append(ids, c.GetPodSandboxId())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// errSmallest is the error of a list that cannot be had in smaller parts.
func errSmallest(what string, labels map[string]string) error {
	return status.Errorf(codes.ResourceExhausted, "the runtime's list of %s of pod %q is larger than one message",
		what, labels[kubelettypes.KubernetesPodUIDLabel])
}

// remember keeps of all sandboxes what is needed to ask for them one by one.
func (l *Lister) remember(all []*runtimeapi.PodSandbox) {
	sandboxes, strangers := map[string][]string{}, []string(nil)
	for _, s := range all {
		if uid := s.GetLabels()[kubelettypes.KubernetesPodUIDLabel]; uid != "" {
			sandboxes[uid] = append(sandboxes[uid], s.GetId())
		} else {
			strangers = append(strangers, s.GetId())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sandboxes, l.strangers = sandboxes, strangers
}

// known returns the UIDs of the pods that may have a sandbox, and the IDs of sandboxes without a pod.
func (l *Lister) known() (uids, strangers []string, err error) {
	uids, err = l.opts.Pods()
	if err != nil {
		return nil, nil, fmt.Errorf("find the pods that may have a sandbox: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	uids = slices.AppendSeq(slices.Clone(uids), maps.Keys(l.sandboxes))
	slices.Sort(uids)
	return slices.Compact(uids), l.strangers, nil
}
