//go:build long

package pods

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// broken is a pod that does not run, and what keeps it as "microlet explain" shows it.
type broken struct {
	pod                   *corev1.Pod
	part, reason, message string
}

// TestExplain: "microlet explain" names the cause of each pod that does not run.
func TestExplain(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	s.CreatePods(scene.PausePod("runs"))
	s.WaitReady(scene.Patience, "runs")
	all := append(brokenContainers(), brokenVolumes(t)...)
	for _, b := range brokenPods() {
		b.pod = scene.OnNode(b.pod, s.NodeName()) // the scheduler would not bind it
		all = append(all, b)
	}
	for _, b := range all {
		s.CreatePods(b.pod)
	}
	for _, b := range all {
		scene.Await(t, scene.Patience, "the explanation of pod "+b.pod.Name, func() error { return b.isExplained(s) })
	}
	if x, err := s.Explain("runs"); err != nil || x.Verdict != "running" || len(x.Causes) != 0 {
		t.Errorf("a pod that runs is explained as %+v, %v", x, err)
	}
	if len(all) < 25 {
		t.Errorf("%d pods, want 25", len(all))
	}
}

func (b *broken) isExplained(s *scene.Scene) error {
	x, err := s.Explain(b.pod.Name)
	if err != nil {
		return err
	}
	for _, c := range x.Causes {
		if c.Part == b.part && c.Reason == b.reason && strings.Contains(c.Message, b.message) {
			return nil
		}
	}
	return fmt.Errorf("explained as %+v, want part %q, reason %q, message %q", x, b.part, b.reason, b.message)
}

// changed is a pod that would run but for a change.
func changed(name string, change func(p *corev1.Pod, c *corev1.Container)) *corev1.Pod {
	p := scene.ScriptPod(name, scene.Forever)
	change(p, &p.Spec.Containers[0])
	return p
}

// inContainer is the part of a pod's only container.
func inContainer(p *corev1.Pod, reason, message string) broken {
	return broken{p, "containers/" + p.Spec.Containers[0].Name, reason, message}
}

func brokenContainers() []broken {
	image := func(name, image string, policy corev1.PullPolicy) *corev1.Pod {
		return changed(name, func(_ *corev1.Pod, c *corev1.Container) { c.Image, c.ImagePullPolicy = image, policy })
	}
	from := func(name string, source *corev1.EnvVarSource) *corev1.Pod {
		return changed(name, func(_ *corev1.Pod, c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "FROM", ValueFrom: source})
		})
	}
	missing := corev1.LocalObjectReference{Name: "missing"}
	once := scene.ScriptPod("ends", "exit 7")
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	return []broken{
		inContainer(image("no-image", "registry.example/missing/image:1.0", ""), "ImagePullBackOff", "next try in"),
		inContainer(image("invalid-image", "registry.example/UPPER:1.0", ""), "InvalidImageName", "UPPER"),
		inContainer(image("never-pulled", "registry.example/never:1.0", corev1.PullNever), "ErrImageNeverPull", "Never"),
		inContainer(changed("no-command", func(_ *corev1.Pod, c *corev1.Container) {
			c.Command = []string{"/does/not/exist"}
		}), "CrashLoopBackOff", "next start"),
		inContainer(from("no-configmap", &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: missing, Key: "a",
		}}), "CreateContainerConfigError", `configmap "missing" not found`),
		inContainer(from("no-secret", &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: missing, Key: "a",
		}}), "CreateContainerConfigError", `secret "missing" not found`),
		inContainer(changed("not-root", func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: new(true)}
		}), "CreateContainerConfigError", "root"),
		inContainer(scene.ScriptPod("crashes", "exit 3"), "CrashLoopBackOff", "exit code 3"),
		inContainer(once, "Error", "exit code 7"),
		{
			changed("first-crashes", func(p *corev1.Pod, _ *corev1.Container) {
				p.Spec.InitContainers = []corev1.Container{scene.ShellContainer("first", "exit 4")}
			}), "containers/first (init container)", "CrashLoopBackOff", "exit code 4",
		},
		{
			changed("first-stays", func(p *corev1.Pod, _ *corev1.Container) {
				p.Spec.InitContainers = []corev1.Container{scene.ShellContainer("first", scene.Forever)}
			}), "containers/first (init container)", "PodInitializing", "waits for this init container",
		},
		probed("unready", "readiness", "Unhealthy"), probed("unstarted", "startup", ""),
	}
}

// probed is a pod that has a probe on a port at which nothing listens.
func probed(name, kind, reason string) broken {
	probe := &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}},
		PeriodSeconds: 1, FailureThreshold: 1,
	}
	p := changed(name, func(_ *corev1.Pod, c *corev1.Container) {
		if kind == "readiness" {
			c.ReadinessProbe = probe
		} else {
			probe.FailureThreshold, reason = 1000, "NotStarted"
			c.StartupProbe = probe
		}
	})
	return broken{p, "containers/" + p.Spec.Containers[0].Name + "/" + kind + " probe", reason, "tcpSocket :9"}
}

func brokenVolumes(t *testing.T) []broken {
	volume := func(name string, source corev1.VolumeSource, message string) broken {
		p := changed(name, func(p *corev1.Pod, c *corev1.Container) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
		})
		return broken{p, "volumes/data", "FailedMount", message}
	}
	missing := corev1.LocalObjectReference{Name: "missing"}
	hostPath := func(path string, kind corev1.HostPathType) corev1.VolumeSource {
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}
	}
	return []broken{
		volume("volume-configmap", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: missing,
		}}, `configmap "missing" not found`),
		volume("volume-secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "missing"}},
			`secret "missing" not found`),
		volume("volume-projected", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: missing}}},
		}}, `configmap "missing" not found`),
		volume("volume-no-directory", hostPath(filepath.Join(t.TempDir(), "none"), corev1.HostPathDirectory),
			"hostPath type check failed"),
		volume("volume-no-file", hostPath(t.TempDir(), corev1.HostPathFile), "is not a file"),
		volume("volume-no-socket", hostPath(t.TempDir(), corev1.HostPathSocket), "is not a socket file"),
	}
}

func brokenPods() []broken {
	rejected := func(name, reason, message string, change func(p *corev1.Pod, c *corev1.Container)) broken {
		return broken{changed(name, change), "admission", reason, message}
	}
	refused := func(name, field string, change func(p *corev1.Pod, c *corev1.Container)) broken {
		return broken{changed(name, change), "fields/" + field, "UnsupportedField", "does not support"}
	}
	return []broken{
		rejected("too-large", "OutOfcpu", "cpu", func(_ *corev1.Pod, c *corev1.Container) {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
		}),
		rejected("elsewhere", "NodeAffinity", "node affinity", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.NodeSelector = map[string]string{"no": "such"}
		}),
		rejected("sysctl", "SysctlForbidden", "kernel.sem", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{
				Sysctls: []corev1.Sysctl{{Name: "kernel.sem", Value: "1 2 3 4"}},
			}
		}),
		rejected("agents-user", "HelperForbidden", "47102", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(47102))}
		}),
		refused("iscsi", "spec.volumes[0].iscsi", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
				ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.2001-04.com.example:disk"},
			}}}
		}),
		{changed("claim", func(p *corev1.Pod, c *corev1.Container) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "missing"},
			}}}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
		}), "volumes/data", "FailedMount", `persistentvolumeclaims "missing" not found`},
	}
}
