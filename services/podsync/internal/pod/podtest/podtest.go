// Package podtest makes the pods that tests start from, and what the runtime has of them.
package podtest

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Now is the time at which the tests look at the pods.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// New returns a pod with these containers that is always restarted.
func New(names ...string) *v1.Pod {
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

// Container returns a container of the sandbox of Ready. It started a minute ago, and ended a second ago if it ended.
func Container(id, name string, state runtimeapi.ContainerState, exit int32) pod.Container {
	return pod.Container{
		ID:        id,
		Name:      name,
		SandboxID: "s0",
		State:     state,
		ExitCode:  exit,
		Image:     "image-" + name,
		ImageRef:  "sha256:" + name,
		Started:   Now.Add(-time.Minute),
		Finished:  Now.Add(-time.Second),
		Reason:    map[bool]string{true: "Completed", false: "Error"}[exit == 0],
	}
}

// Ready returns a pod's state with a sandbox that is ready, and these containers in it.
func Ready(cs ...pod.Container) *pod.State {
	return &pod.State{
		Sandboxes:  []pod.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.2"}}},
		Containers: cs,
	}
}

// SetRestartRule gives a container that is never restarted a rule for what happens when it ends with this code.
func SetRestartRule(c *v1.Container, action v1.ContainerRestartRuleAction, code int32) {
	c.RestartPolicy = new(v1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action: action,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: v1.ContainerRestartRuleOnExitCodesOpIn,
			Values:   []int32{code},
		},
	}}
}
