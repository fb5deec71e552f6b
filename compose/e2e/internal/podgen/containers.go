package podgen

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// containerTraits concern what a container runs, its environment, resources, probes and hooks.
func containerTraits() []trait {
	return []trait{
		{name: "args", apply: func(g *Generator, p *corev1.Pod) {
			c := main(p)
			c.Env = append(c.Env, corev1.EnvVar{Name: "WHO", Value: "world"})
			c.Args = []string{"unused", "hello $(WHO)", "$$(WHO)", "$(UNSET)"}
		}},
		{name: "workingDir", apply: func(g *Generator,
			p *corev1.Pod) {
			main(p).WorkingDir = one(g, "/tmp", "/made/by/runtime")
		}},
		{name: "env values", apply: func(g *Generator, p *corev1.Pod) {
			c := main(p)
			c.Env = append(c.Env,
				corev1.EnvVar{Name: "PLAIN", Value: "a b'c\"d"},
				corev1.EnvVar{Name: "DERIVED", Value: "<$(PLAIN)> $$(PLAIN) $(MISSING)"},
				corev1.EnvVar{Name: "EMPTY"},
				corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "mine"},
			)
		}},
		{name: "env fields", apply: func(g *Generator, p *corev1.Pod) {
			for i, path := range []string{
				"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['app']",
				"metadata.annotations['note']",
				"spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP",
				"status.podIPs",
			} {
				main(p).Env = append(main(p).Env, corev1.EnvVar{
					Name: fmt.Sprintf("FIELD_%d", i),
					ValueFrom: &corev1.EnvVarSource{
						FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
					},
				})
			}
		}},
		{name: "env resources", apply: func(g *Generator, p *corev1.Pod) {
			for i, r := range []struct{ name, divisor string }{
				{"limits.cpu", "1m"}, {"limits.memory", "1Mi"}, {"requests.cpu", "1"}, {"requests.memory", "1"},
				{"requests.ephemeral-storage", "1"}, {"limits.ephemeral-storage", "1Gi"},
			} {
				main(p).Env = append(main(p).Env, corev1.EnvVar{
					Name: fmt.Sprintf("RESOURCE_%d", i),
					ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{
						Resource: r.name, Divisor: resource.MustParse(r.divisor), ContainerName: "main",
					}},
				})
			}
		}},
		{name: "env keys", apply: func(g *Generator, p *corev1.Pod) {
			ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
			main(p).Env = append(main(p).Env,
				corev1.EnvVar{
					Name: "COLOUR",
					ValueFrom: &corev1.EnvVarSource{
						ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
							LocalObjectReference: ref(settings),
							Key:                  "colour",
						},
					},
				},
				corev1.EnvVar{
					Name: "PASSWORD",
					ValueFrom: &corev1.EnvVarSource{
						SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref(secrets), Key: "password"},
					},
				},
				corev1.EnvVar{
					Name: "ABSENT",
					ValueFrom: &corev1.EnvVarSource{
						ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
							LocalObjectReference: ref("absent"),
							Key:                  "a",
							Optional:             new(true),
						},
					},
				},
				corev1.EnvVar{
					Name: "ABSENT_KEY",
					ValueFrom: &corev1.EnvVarSource{
						SecretKeyRef: &corev1.SecretKeySelector{
							LocalObjectReference: ref(secrets),
							Key:                  "absent",
							Optional:             new(true),
						},
					},
				},
			)
		}},
		{name: "envFrom", apply: func(g *Generator, p *corev1.Pod) {
			ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
			main(p).EnvFrom = []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref(settings)}},
				{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref(secrets)}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("absent"), Optional: new(true)}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("absent"), Optional: new(true)}},
			}
		}},
		{name: "env file", apply: func(g *Generator, p *corev1.Pod) {
			g.volume(p, "env", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
			writer := g.script("writes-env", "echo \"COLOUR='blue'\" > /env/vars")
			writer.VolumeMounts = []corev1.VolumeMount{{Name: "env", MountPath: "/env"}}
			p.Spec.InitContainers = append(p.Spec.InitContainers, writer)
			file := corev1.FileKeySelector{VolumeName: "env", Path: "vars", Key: "COLOUR"}
			absent := file
			absent.Key, absent.Optional = "ABSENT", new(true)
			main(p).Env = append(main(p).Env,
				corev1.EnvVar{Name: "FROM_FILE", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &file}},
				corev1.EnvVar{Name: "NOT_IN_FILE", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &absent}},
			)
		}},
		{name: "ports", alone: "network", apply: func(g *Generator, p *corev1.Pod) {
			main(p).Ports = append(main(p).Ports, corev1.ContainerPort{Name: "web", ContainerPort: 8080},
				corev1.ContainerPort{Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP})
		}},
		{name: "host port", alone: "network", apply: func(g *Generator, p *corev1.Pod) {
			g.used++
			main(p).Ports = append(main(p).Ports, corev1.ContainerPort{
				Name:          "host",
				ContainerPort: 9090,
				HostPort:      int32(20000 + g.used),
				HostIP:        next(g, "host IP", "", "127.0.0.1"),
				Protocol:      one(g, corev1.ProtocolTCP, corev1.ProtocolUDP),
			})
		}},
		{name: "burstable", alone: "resources", apply: func(g *Generator, p *corev1.Pod) {
			main(p).Resources = corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse(one(g, "1m", "3m", "11m")),
					corev1.ResourceMemory: resource.MustParse("4Mi"),
				},
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(one(g, "32Mi", "50M"))},
			}
		}},
		{name: "guaranteed", alone: "resources", apply: func(g *Generator, p *corev1.Pod) {
			main(p).Resources.Limits = corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse(one(g, "100m", "150m")),
				corev1.ResourceMemory: resource.MustParse("24Mi"),
			}
		}},
		{name: "storage request", alone: "resources", apply: func(g *Generator, p *corev1.Pod) {
			main(p).Resources.Requests = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
		}},
		{name: "storage limit", alone: "resources", apply: func(g *Generator, p *corev1.Pod) {
			main(p).Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
		}},
		{name: "pod resources", alone: "resources", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("5m"),
					corev1.ResourceMemory: resource.MustParse("16Mi"),
				},
				Limits: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("50m"),
					corev1.ResourceMemory: resource.MustParse("64Mi"),
				},
			}
		}},
		{name: "resize policy", lasting: true, apply: func(g *Generator, p *corev1.Pod) {
			main(p).ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
				{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
			}
		}},
		{name: "readiness probe", alone: "readiness", lasting: true, apply: func(g *Generator, p *corev1.Pod) {
			main(p).ReadinessProbe = &corev1.Probe{
				ProbeHandler:     g.healthy(),
				PeriodSeconds:    1,
				SuccessThreshold: 2,
				FailureThreshold: 5,
				TimeoutSeconds:   5,
			}
		}},
		{name: "liveness probe", alone: "liveness", lasting: true, apply: func(g *Generator, p *corev1.Pod) {
			main(p).LivenessProbe = &corev1.Probe{
				ProbeHandler:                  g.healthy(),
				PeriodSeconds:                 2,
				FailureThreshold:              5,
				TimeoutSeconds:                5,
				TerminationGracePeriodSeconds: new(int64(3)),
			}
		}},
		{name: "startup probe", lasting: true, apply: func(g *Generator, p *corev1.Pod) {
			main(p).StartupProbe = &corev1.Probe{
				ProbeHandler:        g.healthy(),
				PeriodSeconds:       1,
				FailureThreshold:    30,
				InitialDelaySeconds: 1,
			}
		}},
		{
			name:    "probes of the node",
			alone:   "readiness liveness",
			lasting: true,
			apply: func(g *Generator, p *corev1.Pod) {
				port := intstr.FromInt32(g.opts.Answers)
				main(p).ReadinessProbe = &corev1.Probe{
					PeriodSeconds: 1,
					ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
						Host: "127.0.0.1", Port: port, Path: "/answers?all=1", Scheme: corev1.URISchemeHTTP,
						HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Probe", Value: "ready"},
							{Name: "Accept", Value: "text/plain"}},
					}},
				}
				main(p).LivenessProbe = &corev1.Probe{
					PeriodSeconds: 1,
					ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{
						Host: "127.0.0.1",
						Port: port,
					}},
				}
			},
		},
		{
			name:    "probes of a server",
			alone:   "network pod-user",
			lasting: true,
			apply: func(g *Generator, p *corev1.Pod) {
				web := corev1.Container{
					Name:  "web",
					Image: g.opts.Server,
					Args:  []string{"netexec", "--http-port=8083"},
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8083}},
				}
				web.ReadinessProbe = &corev1.Probe{
					PeriodSeconds:    1,
					FailureThreshold: 60,
					ProbeHandler: corev1.ProbeHandler{
						HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")},
					},
				}
				web.StartupProbe = &corev1.Probe{
					PeriodSeconds:    1,
					FailureThreshold: 60,
					ProbeHandler: corev1.ProbeHandler{
						TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8083)},
					},
				}
				health := corev1.Container{
					Name:  "health",
					Image: g.opts.Server,
					Args:  []string{"grpc-health-checking", "--port=5000", "--http-port=8084"},
				}
				health.StartupProbe = &corev1.Probe{
					PeriodSeconds:    1,
					FailureThreshold: 60,
					ProbeHandler:     corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 5000, Service: new("")}},
				}
				p.Spec.Containers = append(p.Spec.Containers, web, health)
			},
		},
		{name: "postStart", lasting: true, apply: func(g *Generator, p *corev1.Pod) {
			lifecycle(p).PostStart = next(g, "postStart",
				&corev1.LifecycleHandler{
					Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo started > /tmp/started || true"}},
				},
				&corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}},
			)
		}},
		{name: "preStop", alone: "preStop", apply: func(g *Generator, p *corev1.Pod) {
			lifecycle(p).PreStop = next(g, "preStop",
				&corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}},
				&corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}},
			)
		}},
		{name: "preStop that calls", alone: "preStop", apply: func(g *Generator, p *corev1.Pod) {
			lifecycle(p).PreStop = next(g,
				"preStop that calls", // the first two fail: nothing listens, and the kubelet knows no such hook
				&corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/bye", Port: intstr.FromInt32(1)}},
				&corev1.LifecycleHandler{
					TCPSocket: &corev1.TCPSocketAction{Host: "127.0.0.1", Port: intstr.FromInt32(1)},
				},
				&corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
					Host:        "127.0.0.1",
					Port:        intstr.FromInt32(g.opts.Answers),
					Path:        "/bye",
					Scheme:      corev1.URISchemeHTTP,
					HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Hook", Value: "bye"}},
				}},
			)
		}},
		{name: "terminal", apply: func(g *Generator, p *corev1.Pod) {
			main(p).Stdin, main(p).StdinOnce, main(p).TTY = true, next(g, "stdinOnce", true, false), next(g, "tty",
				true, false)
		}},
		{name: "termination message", apply: func(g *Generator, p *corev1.Pod) {
			main(p).TerminationMessagePath, main(p).TerminationMessagePolicy = "/tmp/last-words",
				corev1.TerminationMessageFallbackToLogsOnError
		}},
		{name: "second container", lasting: true, apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, g.forever("second"))
		}},
		{name: "ends", alone: end, apply: func(g *Generator, p *corev1.Pod) {
			g.ends(p, "echo done > /dev/termination-log; exit 0",
				one(g, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure))
		}},
		{name: "fails", alone: end, apply: func(g *Generator, p *corev1.Pod) {
			g.ends(p, "echo the last line; exit 7", corev1.RestartPolicyNever)
			main(p).TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}},
		{name: "ends at the second try", alone: end, apply: func(g *Generator, p *corev1.Pod) {
			g.ends(p, "if test -e /try/first; then exit 0; fi; touch /try/first; exit 3", corev1.RestartPolicyOnFailure)
			p.Spec.Volumes = append(p.Spec.Volumes,
				corev1.Volume{Name: "try", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			main(p).VolumeMounts = append(main(p).VolumeMounts, corev1.VolumeMount{Name: "try", MountPath: "/try"})
		}},
		{name: "restart rules", alone: end, apply: func(g *Generator, p *corev1.Pod) {
			g.ends(p, "if test -e /try/first; then exit 0; fi; touch /try/first; exit 42", corev1.RestartPolicyNever)
			p.Spec.Volumes = append(p.Spec.Volumes,
				corev1.Volume{Name: "try", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			main(p).VolumeMounts = append(main(p).VolumeMounts, corev1.VolumeMount{Name: "try", MountPath: "/try"})
			main(p).RestartPolicy = new(corev1.ContainerRestartPolicyNever)
			main(p).RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action: corev1.ContainerRestartRuleActionRestart,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
					Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
					Values:   []int32{42},
				},
			}}
		}},
	}
}

// ends makes the pod one that comes to its end: its main container runs the script, and nothing
// else of it runs for ever.
func (g *Generator) ends(p *corev1.Pod, script string, policy corev1.RestartPolicy) {
	p.Labels[EndsLabel] = "true"
	p.Spec.RestartPolicy = policy
	main(p).Command = []string{"sh", "-c", script}
}

// healthy is a probe that succeeds.
func (g *Generator) healthy() corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}
}

func lifecycle(p *corev1.Pod) *corev1.Lifecycle {
	if main(p).Lifecycle == nil {
		main(p).Lifecycle = &corev1.Lifecycle{}
	}
	return main(p).Lifecycle
}

// initTraits concern init containers and sidecars.
func initTraits() []trait {
	return []trait{
		{name: "init containers", apply: func(g *Generator, p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, g.script("first", "exit 0"),
				g.script("next", "sleep 0.2"))
		}},
		{name: "sidecar", apply: func(g *Generator, p *corev1.Pod) {
			c := g.forever("sidecar")
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			c.StartupProbe = &corev1.Probe{ProbeHandler: g.healthy(), PeriodSeconds: 1, FailureThreshold: 30}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}},
		{name: "init fails", alone: end, apply: func(g *Generator, p *corev1.Pod) {
			g.ends(p, "exit 0", corev1.RestartPolicyNever)
			p.Spec.InitContainers = append(p.Spec.InitContainers, g.script("broken", "exit 5"))
		}},
	}
}
