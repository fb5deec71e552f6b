package criconfig

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

func TestConfigErrors(t *testing.T) {
	b := builder(t)
	uid := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		change func(p *v1.Pod, in *ContainerInput)
		want   string
	}{
		"root image": {func(p *v1.Pod, in *ContainerInput) { p.Spec.SecurityContext.RunAsNonRoot = ptr.To(true) },
			`container has runAsNonRoot and image will run as root (pod: "web_ns(0b5c-1)", container: main)`},
		"named user": {func(p *v1.Pod, in *ContainerInput) {
			p.Spec.SecurityContext.RunAsNonRoot = ptr.To(true)
			in.ImageUID, in.ImageUser = nil, "nginx"
		},
			`container has runAsNonRoot and image has non-numeric user (nginx), cannot verify user is non-root (pod: "web_ns(0b5c-1)", container: main)`},
		"asked to be root": {func(p *v1.Pod, in *ContainerInput) {
			p.Spec.SecurityContext.RunAsNonRoot, p.Spec.SecurityContext.RunAsUser = ptr.To(true), ptr.To[int64](0)
		}, `container's runAsUser breaks non-root policy (pod: "web_ns(0b5c-1)", container: main)`},
		"impossible user": {func(p *v1.Pod, in *ContainerInput) {
			p.Spec.SecurityContext.RunAsNonRoot = ptr.To(true)
			in.ImageUID = uid(1 << 40)
		}, "image has an invalid user id (1099511627776)"},
		"no config map": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{
				ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "x"}},
			}}
		}, `configmap "x" not found`},
		"no secret": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name: "A",
				ValueFrom: &v1.EnvVarSource{
					SecretKeyRef: &v1.SecretKeySelector{
						LocalObjectReference: v1.LocalObjectReference{Name: "x"},
						Key:                  "k",
					},
				},
			}}
		}, `secret "x" not found`},
		"no key": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name: "A",
				ValueFrom: &v1.EnvVarSource{
					ConfigMapKeyRef: &v1.ConfigMapKeySelector{
						LocalObjectReference: v1.LocalObjectReference{Name: "c"},
						Key:                  "k",
					},
				},
			}}
		}, "couldn't find key k in ConfigMap ns/c"},
		"not known": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{}}}
		}, "source that is not built"},
		"no env volume": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name:      "A",
				ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "x"}},
			}}
		}, `cannot find the volume "x" referenced by FileKeyRef`},
		"no env file": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{
				Name:      "A",
				ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "token", Path: "f"}},
			}}
		}, "couldn't parse env file"},
		"no volume": {func(_ *v1.Pod,
			in *ContainerInput) {
			in.Volumes = nil
		}, `cannot find volume "token" to mount into container "main"`},
		"subPath": {func(p *v1.Pod,
			_ *ContainerInput) {
			p.Spec.Containers[0].VolumeMounts[0].SubPath = "../x"
		}, "unable to provision SubPath"},
		"subPath in an image": {func(p *v1.Pod, in *ContainerInput) {
			in.ImageVolumes = map[string]*runtimeapi.ImageSpec{"token": {Image: "i"}}
			p.Spec.Containers[0].VolumeMounts[0].SubPath = "../x"
		}, "unable to provision SubPath"},
		"subPathExpr": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(Y)/$(X)/$(KUBERNETES_SERVICE_HOST)"
		}, "missing value for X, Y"},
		"recursive": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.Containers[0].VolumeMounts[0].RecursiveReadOnly = ptr.To(v1.RecursiveReadOnlyEnabled)
		},
			`failed to resolve recursive read-only mode: volume "token" requested recursive read-only mode, but it is not supported by the runtime`},
		"user namespaces": {func(p *v1.Pod, _ *ContainerInput) { p.Spec.HostUsers = ptr.To(false) },
			"spec.hostUsers is false, and the pod has no user namespace"},
		"seccomp": {func(p *v1.Pod, _ *ContainerInput) {
			p.Spec.SecurityContext.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost}
		}, "localhostProfile must be set"},
		"hostname": {func(p *v1.Pod, _ *ContainerInput) { p.Spec.Hostname = "A_B" }, "not a valid DNS label"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plainPod()
			in := ContainerInput{
				ImageUID: uid(0),
				PodIPs:   []string{"10.1.0.2"},
				Volumes:  map[string]volumes.Mounted{"token": {HostPath: "/v"}},
			}
			c.change(p, &in)
			if err := b.Prepare(p); err != nil {
				t.Fatal(err)
			}
			_, err := b.Container(t.Context(), p, &p.Spec.Containers[0], in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v, want %q", err, c.want)
			}
		})
	}
	t.Run("services not read", func(t *testing.T) {
		b.Services = &links{}
		p := plainPod()
		if _, err := b.Container(t.Context(), p, &p.Spec.Containers[0], ContainerInput{}); err == nil ||
			!strings.Contains(err.Error(), "services have not yet been read") {
			t.Errorf("err = %v", err)
		}
	})
}
