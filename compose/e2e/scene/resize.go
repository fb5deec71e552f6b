package scene

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/resizing"
)

// Resize changes the resources of a pod that is there, as a user does.
func (s *Scene) Resize(name string, change func(*corev1.PodSpec)) {
	s.T.Helper()
	if err := s.TryResize(name, change); err != nil {
		s.T.Fatal(err)
	}
}

// TryResize is Resize for what the API server may refuse.
func (s *Scene) TryResize(name string, change func(*corev1.PodSpec)) error {
	p, err := s.API.CoreV1().Pods(s.Namespace).Get(s.T.Context(), name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("resize pod %s: %w", name, err)
	}
	patch, err := ResizePatch(p, change)
	if err == nil {
		err = s.PatchResize(name, patch)
	}
	return err
}

// ResizePatch is what a user sends for a resize of p.
func ResizePatch(p *corev1.Pod, change func(*corev1.PodSpec)) ([]byte, error) {
	changed := p.DeepCopy()
	change(&changed.Spec)
	before, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("resize pod %s: %w", p.Name, err)
	}
	after, err := json.Marshal(changed)
	if err != nil {
		return nil, fmt.Errorf("resize pod %s: %w", p.Name, err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("resize pod %s: %w", p.Name, err)
	}
	return patch, nil
}

// PatchResize sends a resize.
func (s *Scene) PatchResize(name string, patch []byte) error {
	_, err := s.API.CoreV1().Pods(s.Namespace).Patch(s.T.Context(), name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "resize")
	if err != nil {
		return fmt.Errorf("resize pod %s by %s: %w", name, patch, err)
	}
	return nil
}

// AreResized returns a condition for Wait: the status of these pods shows what their specs ask for.
func (s *Scene) AreResized(names ...string) func(record.View) error {
	return func(v record.View) error {
		var problems []error
		for _, name := range names {
			p := v.Pod(s.Namespace, name)
			if p == nil {
				return fmt.Errorf("no pod %s", name)
			}
			problems = append(problems, resizing.Done(p))
		}
		return errors.Join(problems...)
	}
}

// IsPending returns a condition for Wait: the resize of a pod waits for this reason.
func (s *Scene) IsPending(name, reason string) func(record.View) error {
	return func(v record.View) error {
		p := v.Pod(s.Namespace, name)
		if p == nil {
			return fmt.Errorf("no pod %s", name)
		}
		if c := resizing.Condition(p, corev1.PodResizePending); c == nil || c.Reason != reason {
			return fmt.Errorf("pod %s has the condition PodResizePending %+v, want %s", name, c, reason)
		}
		return nil
	}
}

// ResizeState reads a state file of the agent.
func (s *Scene) ResizeState(file string) (resizing.State, error) {
	text, err := s.ReadFile(filepath.Join(s.RootDir(), file))
	if err != nil {
		return nil, err
	}
	return resizing.ParseState(text)
}

// AgreeOnResources says in what the API server, the state files, the runtime and the cgroups do not agree about the
// resources of these pods. What a pod has is what is granted, which is what its spec asks for unless its resize waits.
func (s *Scene) AgreeOnResources(names ...string) error {
	ctx, cancel := context.WithTimeout(s.T.Context(), 20*time.Second)
	defer cancel()
	if err := s.Record.Sync(ctx); err != nil {
		return err
	}
	allocated, err := s.ResizeState(resizing.AllocatedFile)
	if err != nil {
		return err
	}
	actuated, err := s.ResizeState(resizing.ActuatedFile)
	if err != nil {
		return err
	}
	v := s.Record.View()
	var problems []string
	for _, name := range names {
		p := v.Pod(s.Namespace, name)
		if p == nil {
			return fmt.Errorf("no pod %s", name)
		}
		found, err := s.resourceProblems(p, allocated, actuated)
		if err != nil {
			return fmt.Errorf("pod %s: %w", name, err)
		}
		for _, problem := range found {
			problems = append(problems, "pod "+name+": "+problem)
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems[:min(len(problems), 10)], "\n"))
	}
	return nil
}

// resourceProblems is AgreeOnResources for one pod, and what the files have.
func (s *Scene) resourceProblems(p *corev1.Pod, allocated, actuated resizing.State) (problems []string, err error) {
	has, ok := allocated[p.UID]
	if !ok {
		return []string{"nothing is allocated to it"}, nil
	}
	waits := has.Differences(p)
	switch pending := resizing.Pending(p); {
	case pending == "" && len(waits) > 0:
		problems = append(problems, "no resize is pending, and allocated is "+strings.Join(waits, ", "))
	case pending != "" && len(waits) == 0:
		problems = append(problems, "its resize is pending for "+pending+", and granted")
	}
	granted := has.Of(p)
	problems = append(problems, resizing.StatusProblems(p, granted)...)
	running := resizing.Running(p)
	is := actuated[p.UID].Of(p)
	for i, c := range slices.Concat(granted.Spec.InitContainers, granted.Spec.Containers) {
		status, runs := running[c.Name]
		if !runs {
			continue
		}
		done := slices.Concat(is.Spec.InitContainers, is.Spec.Containers)[i]
		if problem := resizing.OfContainer(granted, &c).Problem(resizing.OfContainer(is, &done)); problem != "" {
			problems = append(problems, "what is actuated of "+c.Name+": "+problem)
		}
		_, id, _ := strings.Cut(status.ContainerID, "://")
		found, err := s.enforcementProblems(granted, &c, id)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// enforcementProblems says in what the runtime and the cgroups of a container and its pod do not have what is granted.
func (s *Scene) enforcementProblems(granted *corev1.Pod, c *corev1.Container, id string) (problems []string,
	err error) {
	want := resizing.OfContainer(granted, c)
	note := func(what, problem string) {
		if problem != "" {
			problems = append(problems, what+": "+problem)
		}
	}
	reported, err := s.runtimeAmounts(id)
	if err != nil {
		return nil, err
	}
	note("the runtime's container "+c.Name, want.Problem(reported))
	container, pod, _, err := s.Amounts(id)
	if err != nil {
		return nil, err
	}
	note("the cgroup of "+c.Name, want.Problem(container))
	note("the cgroup of the pod", resizing.OfPod(granted).Problem(pod))
	return problems, nil
}

// Amounts are what the cgroups of a running container and of its pod have, and where the container's are.
func (s *Scene) Amounts(container string) (own, pod resizing.Amounts, at resizing.Folders, err error) {
	if at, err = s.CgroupFolders(container); err != nil {
		return own, pod, at, err
	}
	own, err = at.Read(s.ReadFile)
	if err == nil {
		pod, err = at.Parent().Read(s.ReadFile)
	}
	return own, pod, at, err
}

// CgroupFolders are those of a running container.
func (n *Node) CgroupFolders(container string) (resizing.Folders, error) {
	pid, err := n.ContainerPID(container)
	if err != nil {
		return resizing.Folders{}, err
	}
	text, err := n.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return resizing.Folders{}, err
	}
	const root = "/sys/fs/cgroup"
	_, notUnified := n.ReadFile(root + "/cgroup.controllers")
	return resizing.FoldersOf(root, string(text), notUnified == nil), nil
}

// runtimeAmounts are those that the runtime reports of a container.
func (n *Node) runtimeAmounts(container string) (a resizing.Amounts, err error) {
	err = n.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		got, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container})
		if err != nil {
			return err
		}
		linux := got.GetStatus().GetResources().GetLinux()
		a = resizing.Amounts{
			Shares: linux.GetCpuShares(), Quota: linux.GetCpuQuota(), Memory: linux.GetMemoryLimitInBytes(),
		}
		return nil
	})
	if a.Quota <= 0 {
		a.Quota = resizing.None
	}
	if a.Memory <= 0 {
		a.Memory = resizing.None
	}
	return a, err
}
