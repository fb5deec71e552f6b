package statusmanager

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/podstatus"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	dead    = runtimeapi.ContainerState_CONTAINER_EXITED
)

func testPod(names ...string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1", Generation: 2, ResourceVersion: "10"},
		Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways},
		Status:     v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBestEffort},
	}
	for _, n := range names {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: n, Image: "image-" + n})
	}
	return p
}

func ctr(id, name string, state runtimeapi.ContainerState, exit int32) pod.Container {
	return pod.Container{
		ID:        id,
		Name:      name,
		SandboxID: "s0",
		State:     state,
		ExitCode:  exit,
		Image:     "image-" + name,
		ImageRef:  "sha256:" + name,
		Started:   t0.Add(-time.Minute),
		Finished:  t0.Add(-time.Second),
		Reason:    map[bool]string{true: "Completed", false: "Error"}[exit == 0],
	}
}

func ready(cs ...pod.Container) *pod.State {
	return &pod.State{
		Sandboxes:  []pod.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.2"}}},
		Containers: cs,
	}
}

func inputs() podstatus.Inputs { return podstatus.Inputs{Now: t0, HostIPs: []string{"192.0.2.1"}} }
