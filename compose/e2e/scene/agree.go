package scene

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Agree says in what the API server, the runtime and the disk do not agree about the pods of the scene.
func (s *Scene) Agree() error {
	ctx, cancel := context.WithTimeout(s.T.Context(), 20*time.Second)
	defer cancel()
	if err := s.Record.Sync(ctx); err != nil {
		return err
	}
	inAPI, known := map[string]bool{}, map[string]bool{} // containers that run, pods that are there
	for _, p := range s.Record.View().Pods(s.Namespace) {
		known[string(p.UID)] = true
		for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
			p.Status.EphemeralContainerStatuses) {
			if status.State.Running != nil {
				_, id, _ := strings.Cut(status.ContainerID, "://")
				inAPI[id] = true
			}
		}
	}
	var problems []string
	err := s.CRI(func(r runtimeapi.RuntimeServiceClient) error {
		ours := map[string]string{"io.kubernetes.pod.namespace": s.Namespace}
		list, err := r.ListContainers(ctx,
			&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: ours}})
		if err != nil {
			return err
		}
		for _, x := range list.GetContainers() {
			running := x.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
			what := fmt.Sprintf("container %s of %s, %s: ", x.GetMetadata().GetName(),
				x.GetLabels()["io.kubernetes.pod.name"], x.GetState())
			switch {
			case !known[x.GetLabels()["io.kubernetes.pod.uid"]]:
				problems = append(problems, what+"its pod is gone")
			case running && !inAPI[x.GetId()]:
				problems = append(problems, what+"the API server does not know that it runs")
			case !running && inAPI[x.GetId()]:
				problems = append(problems, what+"the API server has it as running")
			}
			delete(inAPI, x.GetId())
		}
		boxes, err := r.ListPodSandbox(ctx,
			&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: ours}})
		if err != nil {
			return err
		}
		ready := map[string]int{}
		for _, b := range boxes.GetItems() {
			uid := b.GetMetadata().GetUid()
			if !known[uid] {
				problems = append(problems, "sandbox of "+b.GetMetadata().GetName()+": its pod is gone")
			}
			if b.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
				if ready[uid]++; ready[uid] > 1 {
					problems = append(problems, "two ready sandboxes of "+b.GetMetadata().GetName())
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for id := range inAPI {
		problems = append(problems, "the API server has a running container that the runtime does not have: "+id)
	}
	names, err := s.FileNames(s.RootDir() + "/pods")
	if err != nil {
		return err
	}
	for _, dir := range names {
		if uid, _, _ := strings.Cut(dir, "/"); !known[uid] {
			problems = append(problems, "the folder of a pod that is gone: "+dir)
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s", strings.Join(problems[:min(len(problems), 10)], "\n"))
	}
	return nil
}
