package twin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Facts are what was made of a pod: a value for each path.
type Facts map[string]string

// Read reads a pod as it is now.
func Read(ctx context.Context, client kubernetes.Interface, cri runtimeapi.RuntimeServiceClient,
	p *corev1.Pod) (Facts, error) {
	n := newNormaliser(p)
	sandbox, containers, err := boxes(ctx, cri, p, n)
	if err != nil {
		return nil, err
	}
	events, err := client.CoreV1().Events(p.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
	if err != nil {
		return nil, fmt.Errorf("list events of %s: %w", p.Name, err)
	}
	facts := Facts{}
	status, err := tree(p.Status)
	if err != nil {
		return nil, err
	}
	n.flatten("status", status, facts)
	if sandbox != nil {
		n.flatten("sandbox", sandbox, facts)
	}
	for name, c := range containers {
		n.flatten("container["+name+"]", c, facts)
	}
	for i := range events.Items {
		e := &events.Items[i]
		if e.Source.Component == "default-scheduler" {
			continue
		}
		facts[n.text(fmt.Sprintf("event[%s %s %s %s %s]", e.Type, e.Source.Component, e.Reason, e.InvolvedObject.FieldPath,
			e.Message))] = "sent"
	}
	return facts, nil
}

// boxes are what the runtime was given for the pod's newest sandbox and the newest incarnation of each
// container.
func boxes(ctx context.Context, cri runtimeapi.RuntimeServiceClient, p *corev1.Pod,
	n *normaliser) (sandbox any, containers map[string]any, err error) {
	ours := map[string]string{"io.kubernetes.pod.uid": string(p.UID)}
	sandboxes, err := cri.ListPodSandbox(ctx,
		&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: ours}})
	if err != nil {
		return nil, nil, fmt.Errorf("list sandboxes of %s: %w", p.Name, err)
	}
	list, err := cri.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: ours}})
	if err != nil {
		return nil, nil, fmt.Errorf("list containers of %s: %w", p.Name, err)
	}
	newest := map[string]*runtimeapi.Container{}
	for _, s := range sandboxes.GetItems() {
		n.replace(s.GetId(), "<sandbox>")
	}
	slices.SortFunc(list.GetContainers(),
		func(a, b *runtimeapi.Container) int { return int(b.GetCreatedAt() - a.GetCreatedAt()) })
	for _, c := range list.GetContainers() {
		if name := c.GetMetadata().GetName(); newest[name] == nil {
			newest[name] = c
			n.replace(c.GetId(), "<container "+name+">")
		}
	}
	if items := sandboxes.GetItems(); len(items) > 0 {
		box := slices.MaxFunc(items,
			func(a, b *runtimeapi.PodSandbox) int { return int(a.GetCreatedAt() - b.GetCreatedAt()) })
		status, err := cri.PodSandboxStatus(ctx,
			&runtimeapi.PodSandboxStatusRequest{PodSandboxId: box.GetId(), Verbose: true})
		if err != nil {
			return nil, nil, fmt.Errorf("read sandbox of %s: %w", p.Name, err)
		}
		for _, ids := range status.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids() {
			n.users = float64(ids.GetHostId())
		}
		if sandbox, err = given(status.GetInfo()); err != nil {
			return nil, nil, fmt.Errorf("sandbox of %s: %w", p.Name, err)
		}
	}
	containers = map[string]any{}
	for name, c := range newest {
		status, err := cri.ContainerStatus(ctx,
			&runtimeapi.ContainerStatusRequest{ContainerId: c.GetId(), Verbose: true})
		if err != nil {
			return nil, nil, fmt.Errorf("read container %s of %s: %w", name, p.Name, err)
		}
		if containers[name], err = given(status.GetInfo()); err != nil {
			return nil, nil, fmt.Errorf("container %s of %s: %w", name, p.Name, err)
		}
	}
	return sandbox, containers, nil
}

// given takes what the agent decided out of the runtime's verbose answer.
func given(info map[string]string) (any, error) {
	var answer struct {
		Config      any `json:"config"`
		RuntimeSpec any `json:"runtimeSpec"`
		Handler     any `json:"runtimeHandler"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &answer); err != nil {
		return nil, fmt.Errorf("the runtime's verbose answer: %w", err)
	}
	if answer.Config == nil || answer.RuntimeSpec == nil {
		return nil, fmt.Errorf("the runtime's verbose answer has no config or no runtimeSpec: %.200s", info["info"])
	}
	return map[string]any{"config": answer.Config, "spec": answer.RuntimeSpec, "handler": answer.Handler}, nil
}

func tree(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	var t any
	return t, json.Unmarshal(text, &t)
}
