package fields

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
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
		Volumes: []v1.Volume{{
			Name: "kube-api-access",
			VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
				DefaultMode: &mode,
				Sources: []v1.VolumeProjection{
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds, Path: "token"}},
					{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
				},
			}},
		},
			{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory,
				SizeLimit: new(resource.MustParse("1Mi"))}}},
			{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/",
				Type: new(v1.HostPathDirectory)}}},
			{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{DefaultMode: &mode,
				Items: []v1.KeyToPath{{Key: "k", Path: "p", Mode: &mode}}}}},
			{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: &mode}}},
			{Name: "downward", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: &mode}}},
		},
		Containers: []v1.Container{{
			Name:                     "c",
			Image:                    "busybox",
			Command:                  []string{"sleep"},
			Args:                     []string{"1"},
			ImagePullPolicy:          v1.PullIfNotPresent,
			TerminationMessagePath:   "/dev/termination-log",
			TerminationMessagePolicy: v1.TerminationMessageReadFile,
			Env: []v1.EnvVar{{Name: "A", Value: "b"},
				{Name: "N", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			Resources:     v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
			VolumeDevices: []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}},
			VolumeMounts: []v1.VolumeMount{
				{Name: "kube-api-access", MountPath: "/var/run/x", ReadOnly: true,
					RecursiveReadOnly: new(v1.RecursiveReadOnlyIfPossible)},
				{Name: "empty", MountPath: "/x", SubPath: "a"}, {Name: "host", MountPath: "/y", SubPathExpr: "$(N)"},
			},
		}},
		InitContainers: []v1.Container{{
			Name:                     "i",
			Image:                    "busybox",
			TerminationMessagePolicy: v1.TerminationMessageReadFile,
		}},
	}}
}

func TestCheckAdmitsThePlainPod(t *testing.T) {
	if err := Check(plain()); err != nil {
		t.Fatal(err)
	}
}

func TestCheckAdmitsLimitsOfStorage(t *testing.T) {
	p := plain()
	storage := v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: storage, Limits: storage}
	p.Spec.InitContainers[0].Resources = v1.ResourceRequirements{Limits: storage}
	p.Spec.Volumes[1].EmptyDir.SizeLimit = new(resource.MustParse("1Mi"))
	if err := Check(p); err != nil {
		t.Fatal(err)
	}
}

func TestCheckAdmitsWhatCgroupsLimit(t *testing.T) {
	p := plain()
	pages := v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi"), v1.ResourceMemory: resource.MustParse("8Mi")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: pages, Limits: pages}
	p.Spec.Resources = &v1.ResourceRequirements{Requests: pages, Limits: pages}
	if err := Check(p); err != nil {
		t.Error(err)
	}
	p.Spec.Resources.Limits["example.com/gpu"] = resource.MustParse("1")
	if err := Check(p); err == nil {
		t.Error("a device for the pod as a whole was admitted")
	}
}

// An extended resource is a device plugin's, or an operator's, unless the scheduler has claimed it from a driver.
func TestCheckAdmitsExtendedResources(t *testing.T) {
	p := plain()
	gpu := v1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: gpu, Limits: gpu}
	p.Spec.InitContainers = []v1.Container{{Name: "first", Resources: v1.ResourceRequirements{Requests: gpu, Limits: gpu}}}
	if err := Check(p); err != nil {
		t.Error(err)
	}
	p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
		RequestMappings: []v1.ContainerExtendedResourceRequest{
			{ContainerName: "first", ResourceName: "example.com/gpu"}, {ContainerName: "other", ResourceName: "example.com/gpu"},
		},
	}
	var refused *UnsupportedError
	want := []string{"spec.initContainers[0].resources.limits[example.com/gpu]"}
	if err := Check(p); !errors.As(err, &refused) || !slices.Equal(refused.Fields, want) {
		t.Errorf("claimed from a driver: %v", err)
	}
}

func TestCheckTakesWhatIsWindowsAlone(t *testing.T) {
	p := plain()
	options := &v1.WindowsSecurityContextOptions{
		RunAsUserName:      new("ContainerUser"),
		HostProcess:        new(true),
		GMSACredentialSpec: new("{}"),
	}
	p.Spec.SecurityContext.WindowsOptions = options
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		list[0].SecurityContext = &v1.SecurityContext{WindowsOptions: options}
	}
	if err := Check(p); err != nil {
		t.Error(err)
	}
}

func TestCheckNamesEachField(t *testing.T) {
	signal := v1.SIGUSR1
	always := v1.ContainerRestartPolicyAlways
	for _, test := range []struct {
		field  string
		change func(*v1.PodSpec)
	}{
		{"spec.initContainers[0].lifecycle.stopSignal", func(s *v1.PodSpec) {
			s.InitContainers = []v1.Container{{
				Name:          "i",
				RestartPolicy: &always,
				Lifecycle:     &v1.Lifecycle{StopSignal: &signal},
			}}
		}},
		{"spec.ephemeralContainers[0].resources.claims", func(s *v1.PodSpec) {
			claims := v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}}
			debug := v1.EphemeralContainerCommon{Name: "d", Resources: claims}
			s.EphemeralContainers = []v1.EphemeralContainer{{TargetContainerName: "c", EphemeralContainerCommon: debug}}
		}},
		{"spec.volumes[7].iscsi", func(s *v1.PodSpec) {
			s.Volumes = append(s.Volumes,
				v1.Volume{Name: "h", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{Lun: 1}}})
		}},
		{"spec.volumes[7].emptyDir.mode", func(s *v1.PodSpec) {
			mode := int32(0o700)
			s.Volumes = append(s.Volumes,
				v1.Volume{
					Name:         "e",
					VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Mode: &mode}},
				})
		}},
		{"spec.volumes[7].secret.items[0].user", func(s *v1.PodSpec) {
			s.Volumes = append(s.Volumes,
				v1.Volume{
					Name: "s",
					VolumeSource: v1.VolumeSource{
						Secret: &v1.SecretVolumeSource{Items: []v1.KeyToPath{{User: new(int64)}}},
					},
				})
		}},
		{"spec.volumes[0].projected.sources[2].podCertificate.user", func(s *v1.PodSpec) {
			s.Volumes[0].Projected.Sources = append(s.Volumes[0].Projected.Sources,
				v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{KeyType: "ED25519", User: new(int64)}})
		}},
		{"spec.containers[0].resources.limits[kubernetes.io/gpu]", func(s *v1.PodSpec) {
			s.Containers[0].Resources.Limits["kubernetes.io/gpu"] = resource.MustParse("1")
			s.Containers[0].Resources.Requests = v1.ResourceList{"kubernetes.io/gpu": resource.MustParse("1")}
		}},
		{"spec.containers[0].resources.requests[kubernetes.io/gpu]", func(s *v1.PodSpec) {
			s.Containers[0].Resources.Requests = v1.ResourceList{"kubernetes.io/gpu": resource.MustParse("1")}
		}},
		{"spec.containers[0].resources.claims", func(s *v1.PodSpec) {
			s.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
		}},
	} {
		t.Run(test.field, func(t *testing.T) {
			p := plain()
			test.change(&p.Spec)
			var refused *UnsupportedError
			if err := Check(p); !errors.As(err, &refused) {
				t.Fatalf("admitted: %v", err)
			}
			if !slices.Equal(refused.Fields, []string{test.field}) {
				t.Fatalf("named %v", refused.Fields)
			}
		})
	}
}

func TestTheErrorIsBounded(t *testing.T) {
	p := plain()
	for i := range 1000 {
		p.Spec.Containers[0].Resources.Limits[v1.ResourceName(fmt.Sprintf("kubernetes.io/gpu%d", i))] = resource.MustParse("1")
	}
	var refused *UnsupportedError
	if err := Check(p); !errors.As(err, &refused) || len(refused.Fields) != 1000 || len(err.Error()) > 1000 ||
		!strings.Contains(err.Error(), " and 990 more yet") {
		t.Errorf("%v", err)
	}
}

func TestCheckAdmitsWhatGatesOpen(t *testing.T) {
	p := plain()
	user, mode := int64(1000), int32(0o1777)
	p.Spec.Volumes[0].Projected.DefaultUser = &user
	p.Spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.User = &user
	p.Spec.Volumes[4].ConfigMap.Items[0].User = &user
	p.Spec.Volumes[1].EmptyDir.Mode = &mode
	if err := Check(p, Gated(func(gate string) bool { return gate != "EmptyDirVolumeMode" })...); err == nil {
		t.Error("a mode was admitted without its gate")
	}
	if err := Check(p, Gated(func(string) bool { return true })...); err != nil {
		t.Error(err)
	}
}

// TestGatedFieldsAreRefusedWithoutTheirGate finds a field that the gates spell otherwise than the API.
func TestGatedFieldsAreRefusedWithoutTheirGate(t *testing.T) {
	known := map[string]leaf{}
	for _, l := range leaves(reflect.TypeFor[v1.PodSpec](), "spec", nil) {
		known[l.path] = l
	}
	for gate, fields := range gates {
		for _, field := range fields {
			l, ok := known[field]
			if !ok {
				t.Errorf("%s: the API has no field %s", gate, field)
				continue
			}
			p := &v1.Pod{}
			l.set(reflect.ValueOf(&p.Spec).Elem())
			if Check(p) == nil || Check(p, Gated(func(g string) bool { return g == gate })...) != nil {
				t.Errorf("%s does not decide on %s", gate, field)
			}
		}
	}
}

func TestRefusalsNameWhatToUseInstead(t *testing.T) {
	p := plain()
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "lun", VolumeSource: v1.VolumeSource{
		ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "10.0.0.1"}}})
	if err := Check(p); err == nil || !strings.HasSuffix(err.Error(),
		"; instead of iscsi use the CSI driver iscsi.csi.k8s.io") {
		t.Error(err)
	}
}
