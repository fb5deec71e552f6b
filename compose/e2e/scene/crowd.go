package scene

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
)

// HasRun reports whether a pod runs; of one that crashes, that it has been restarted.
func HasRun(p *corev1.Pod, crashing bool) bool {
	if !crashing {
		return record.Ready(p)
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.RestartCount > 0 &&
			(c.LastTerminationState.Terminated != nil && c.LastTerminationState.Terminated.ExitCode == 3 ||
				c.State.Terminated != nil && c.State.Terminated.ExitCode == 3) {
			return true
		}
	}
	return false
}

// Kind is one kind of pod of a crowd.
type Kind struct {
	name   string
	change func(p *corev1.Pod)
	// crashing pods never stay Ready: they have run when they were restarted.
	crashing bool
}

// Kinds are all kinds of pods that a crowd has.
var Kinds = []Kind{
	{name: "plain", change: func(*corev1.Pod) {}},
	{name: "several", change: func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, ShellContainer("second", Forever), ShellContainer("third", Forever))
	}},
	{name: "limits", change: func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("5m"),
				corev1.ResourceMemory: resource.MustParse("8Mi"),
			},
			Limits: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("32Mi"),
			},
		}
	}},
	{name: "nonroot", change: func(p *corev1.Pod) {
		uid, yes := int64(1234), true
		p.Spec.Containers = []corev1.Container{ShellContainer("main", `test "$(id -u)" = 1234 || exit 1; `+Forever)}
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &uid, RunAsNonRoot: &yes}
	}},
	{name: "hostnet", change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
	{name: "crashing", crashing: true, change: func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{ShellContainer("main", "exit 3")}
	}},
	{name: "stubborn", change: func(p *corev1.Pod) {
		grace := int64(2)
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.Containers = []corev1.Container{{
			Name:    "main",
			Image:   rig.BusyboxImage,
			Command: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"},
		}}
	}},
}

// Crowd returns so many pods, of all kinds in turn.
func Crowd(count int) (pods []*corev1.Pod, crashing map[string]bool) {
	crashing = map[string]bool{}
	for i := range count {
		k := Kinds[i%len(Kinds)]
		p := PausePod(fmt.Sprintf("%s-%d", k.name, i))
		k.change(p)
		pods = append(pods, p)
		if k.crashing {
			crashing[p.Name] = true
		}
	}
	return pods, crashing
}
