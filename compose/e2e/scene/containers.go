package scene

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
)

// LeavesNoContainer waits until the runtime has nothing of pods that are gone.
func (s *Scene) LeavesNoContainer(pods ...string) {
	s.T.Helper()
	Await(s.T, Patience, "no container of pods that are gone", func() error {
		var errs []error
		for _, pod := range pods {
			all, err := s.Containers(pod)
			if err == nil && len(all) > 0 {
				err = fmt.Errorf("pod %s has %d containers", pod, len(all))
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// Restarted waits for the status of a container that was restarted so often and runs.
func (s *Scene) Restarted(pod string, times int32) func(record.View) error {
	return func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, pod) {
			if c.RestartCount >= times && c.State.Running != nil {
				return nil
			}
		}
		return fmt.Errorf("pod %s: %s", pod, Describe(v.Pod(s.Namespace, pod)))
	}
}

// Containers asks the runtime for the containers of a pod.
func (s *Scene) Containers(pod string) ([]*runtimeapi.Container, error) {
	var found []*runtimeapi.Container
	err := s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(s.T.Context(), 10*time.Second)
		defer cancel()
		got, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": pod, "io.kubernetes.pod.namespace": s.Namespace},
		}})
		found = got.GetContainers()
		return err
	})
	return found, err
}

// EndContainer ends the one running container of a pod from outside, as its own failure would: by a
// signal to its first process.
func (s *Scene) EndContainer(pod string) {
	s.T.Helper()
	all, err := s.Containers(pod)
	if err != nil {
		s.T.Fatal(err)
	}
	for _, c := range all {
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		pid, err := s.ContainerPID(c.GetId())
		if err != nil {
			s.T.Fatal(err)
		}
		if err := s.SignalPIDs(syscall.SIGKILL, pid); err != nil {
			s.T.Fatalf("end container %s: %v", c.GetId(), err)
		}
		return
	}
	s.T.Fatalf("pod %s has no running container", pod)
}

// RunsAttempt returns nil when the runtime has this attempt of a pod's container running.
func (s *Scene) RunsAttempt(pod string, attempt uint32) error {
	all, err := s.Containers(pod)
	if err != nil {
		return err
	}
	var seen []string
	for _, c := range all {
		seen = append(seen, fmt.Sprintf("attempt %d %s", c.GetMetadata().GetAttempt(), c.GetState()))
		if c.GetMetadata().GetAttempt() == attempt && c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return nil
		}
	}
	return fmt.Errorf("pod %s has the containers %v", pod, seen)
}

// ContainerID is the ID of the first container of a pod that has one.
func ContainerID(p *corev1.Pod) string { return p.Status.ContainerStatuses[0].ContainerID }

// ContainerPID is the pid of a container's first process, by the runtime's word.
func (n *Node) ContainerPID(container string) (int, error) {
	var info struct {
		PID int `json:"pid"`
	}
	err := n.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		got, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(got.GetInfo()["info"]), &info)
	})
	if err == nil && info.PID == 0 {
		err = fmt.Errorf("the runtime returns no pid of container %s", container)
	}
	return info.PID, err
}
