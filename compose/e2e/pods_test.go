package e2e

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/compose/rig"
)

// ShellContainer is a container that runs a script. The trap makes it end at once when it is asked to: the
// first process of a container ignores SIGTERM otherwise.
func ShellContainer(name, script string) corev1.Container {
	return corev1.Container{
		Name: name, Image: rig.BusyboxImage, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"sh", "-c", "trap 'exit 0' TERM; " + script},
	}
}

// Forever keeps a script's container running.
const Forever = "while :; do sleep 3600 & wait $!; done"

// PausePod is a pod of one container that does nothing for ever.
func PausePod(name string) *corev1.Pod {
	grace := int64(10)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name:            "main",
				Image:           rig.PauseImage,
				ImagePullPolicy: corev1.PullIfNotPresent,
			}},
		},
	}
}

// ScriptPod is a pod of one container that runs a script.
func ScriptPod(name, script string) *corev1.Pod {
	p := PausePod(name)
	p.Spec.Containers = []corev1.Container{ShellContainer("main", script)}
	return p
}

// ProbeFailureThreshold is the probes' threshold; they run each second.
const ProbeFailureThreshold = 3

// What a probed pod writes, for the time at which it does.
const (
	Begins    = "begins"
	turnedIll = "turned ill"
)

// HTTPProbe asks a probed pod for the file that says that it is well.
var HTTPProbe = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromInt32(8080)}}

// ProbedPod is a pod that is asked each second whether it is ready and whether it lives.
func ProbedPod(name string, how corev1.ProbeHandler) *corev1.Pod {
	p := ScriptPod(name,
		"echo "+Begins+"; mkdir -p /tmp/www; echo ok > /tmp/www/ok; httpd -p 8080 -h /tmp/www; "+Forever)
	probe := func() *corev1.Probe {
		return &corev1.Probe{
			PeriodSeconds:    1,
			TimeoutSeconds:   5,
			FailureThreshold: ProbeFailureThreshold,
			ProbeHandler:     *how.DeepCopy(),
		}
	}
	c := &p.Spec.Containers[0]
	c.ReadinessProbe, c.LivenessProbe = probe(), probe()
	c.LivenessProbe.InitialDelaySeconds = 10 // the server is up long before, on a busy machine too
	return p
}

// turnsIll has a probed pod turn ill some time after its start, but not when it was restarted for that.
func turnsIll(p *corev1.Pod, after time.Duration) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{
		Name:         "memory",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	}}
	c := &p.Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}}
	script := &c.Command[len(c.Command)-1]
	ill := fmt.Sprintf("test -e /memory/ill || { sleep %d; touch /memory/ill; rm /tmp/www/ok; echo %s; }; ",
		int(after.Seconds()), turnedIll)
	*script = strings.TrimSuffix(*script, Forever) + ill + Forever
	return p
}

// Kind is one kind of pod of a crowd.
type Kind struct {
	name   string
	change func(p *corev1.Pod)
	// crashing pods never stay Ready: they have run when they were restarted.
	crashing bool
}

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
