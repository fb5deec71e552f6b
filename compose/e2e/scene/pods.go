package scene

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/compose/rig"
)

// OnNode binds a pod to a node, so that no scheduler is asked.
func OnNode(p *corev1.Pod, node string) *corev1.Pod {
	p.Spec.NodeName = node
	return p
}

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

// Begins is what a probed pod writes when it begins.
const Begins = "begins"

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
