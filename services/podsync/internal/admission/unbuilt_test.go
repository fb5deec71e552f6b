package admission

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// plain is a pod as the apiserver gives it: defaulted, with the service account's volume.
func plain() *v1.Pod {
	seconds, mode := int64(3607), int32(0o644)
	links := true
	grace := int64(30)
	return &v1.Pod{Spec: v1.PodSpec{
		NodeName: "n", SchedulerName: "default-scheduler", DNSPolicy: v1.DNSClusterFirst,
		RestartPolicy: v1.RestartPolicyAlways, ServiceAccountName: "default", DeprecatedServiceAccount: "default",
		EnableServiceLinks: &links, TerminationGracePeriodSeconds: &grace,
		SecurityContext: &v1.PodSecurityContext{},
		Tolerations:     []v1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: v1.TolerationOpExists}},
		Volumes: []v1.Volume{{Name: "kube-api-access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
			DefaultMode: &mode,
			Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds, Path: "token"}},
				{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
			},
		}}}},
		Containers: []v1.Container{{
			Name: "c", Image: "busybox", Command: []string{"sleep"}, Args: []string{"1"}, ImagePullPolicy: v1.PullIfNotPresent,
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
			Env:          []v1.EnvVar{{Name: "A", Value: "b"}, {Name: "N", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			Resources:    v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
			VolumeMounts: []v1.VolumeMount{{Name: "kube-api-access", MountPath: "/var/run/x", ReadOnly: true}},
		}},
		InitContainers: []v1.Container{{Name: "i", Image: "busybox", TerminationMessagePolicy: v1.TerminationMessageReadFile}},
	}}
}

func TestHonouredAdmitsThePlainPod(t *testing.T) {
	if err := Honoured(plain()); err != nil {
		t.Fatal(err)
	}
}

func TestHonouredNamesEachField(t *testing.T) {
	no := false
	signal := v1.SIGUSR1
	class := "gvisor"
	always := v1.ContainerRestartPolicyAlways
	for _, test := range []struct {
		field  string
		change func(*v1.PodSpec)
	}{
		{"spec.initContainers[0].lifecycle.stopSignal", func(s *v1.PodSpec) {
			s.InitContainers = []v1.Container{{Name: "i", RestartPolicy: &always, Lifecycle: &v1.Lifecycle{StopSignal: &signal}}}
		}},
		{"spec.ephemeralContainers", func(s *v1.PodSpec) { s.EphemeralContainers = []v1.EphemeralContainer{{}, {}} }},
		{"spec.runtimeClassName", func(s *v1.PodSpec) { s.RuntimeClassName = &class }},
		{"spec.hostUsers", func(s *v1.PodSpec) { s.HostUsers = &no }},
		{"spec.securityContext.sysctls", func(s *v1.PodSpec) { s.SecurityContext.Sysctls = []v1.Sysctl{{Name: "kernel.msgmax"}} }},
		{"spec.volumes[1].hostPath", func(s *v1.PodSpec) {
			s.Volumes = append(s.Volumes, v1.Volume{Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}})
		}},
		{"spec.volumes[0].projected", func(s *v1.PodSpec) {
			s.Volumes[0].Projected.Sources = append(s.Volumes[0].Projected.Sources, v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{}})
		}},
		{"spec.containers[0].readinessProbe", func(s *v1.PodSpec) { s.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1} }},
		{"spec.containers[0].restartPolicyRules", func(s *v1.PodSpec) {
			s.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}
		}},
		{"spec.containers[0].volumeMounts[0].subPath", func(s *v1.PodSpec) { s.Containers[0].VolumeMounts[0].SubPath = "x" }},
		{"spec.containers[0].env[0].valueFrom.fileKeyRef", func(s *v1.PodSpec) {
			s.Containers[0].Env[0] = v1.EnvVar{Name: "A", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{Key: "k"}}}
		}},
		{"spec.containers[0].resources", func(s *v1.PodSpec) {
			s.Containers[0].Resources.Limits["example.com/gpu"] = resource.MustParse("1")
		}},
	} {
		t.Run(test.field, func(t *testing.T) {
			p := plain()
			test.change(&p.Spec)
			var refused *NotHonoured
			if err := Honoured(p); !errors.As(err, &refused) {
				t.Fatalf("admitted: %v", err)
			}
			if !slices.Equal(refused.Fields, []string{test.field}) {
				t.Fatalf("named %v", refused.Fields)
			}
		})
	}
}
