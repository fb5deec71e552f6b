package podgen

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumeTraits concern what is mounted.
func volumeTraits() []trait {
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	field := func(path, name string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{
			Path:     path,
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: name},
		}
	}
	return []trait{
		{name: "emptyDir", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
		}},
		{name: "limited emptyDir", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "limited", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
				SizeLimit: new(resource.MustParse("1Gi"))}})
		}},
		{name: "memory emptyDir", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "memory",
				corev1.VolumeSource{
					EmptyDir: &corev1.EmptyDirVolumeSource{
						Medium:    corev1.StorageMediumMemory,
						SizeLimit: new(resource.MustParse("2Mi")),
					},
				})
		}},
		{name: "hostPath", apply: func(g *Generator, p *corev1.Pod) {
			kind := one(g, corev1.HostPathUnset, corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate)
			m := g.mount(p, "host",
				corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: g.opts.HostDir, Type: &kind}})
			m.MountPropagation = new(one(g, corev1.MountPropagationNone, corev1.MountPropagationHostToContainer))
		}},
		{name: "hostPath file", apply: func(g *Generator, p *corev1.Pod) {
			kind := corev1.HostPathFileOrCreate
			m := g.mount(p, "host-file",
				corev1.VolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(g.opts.HostDir, "file"), Type: &kind},
				})
			m.ReadOnly = true
		}},
		{name: "configMap", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "config",
				corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: ref(settings),
						DefaultMode:          new(int32(0o640)),
					},
				})
		}},
		{name: "configMap items", apply: func(g *Generator, p *corev1.Pod) {
			m := g.mount(p, "config-items", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: ref(settings),
				Items: []corev1.KeyToPath{{
					Key:  "text.conf",
					Path: "etc/app/text.conf",
					Mode: new(int32(0o400)),
				}},
			}})
			m.SubPath, m.ReadOnly = "etc/app/text.conf", true
		}},
		{name: "secret", apply: func(g *Generator, p *corev1.Pod) {
			m := g.mount(p, "secret",
				corev1.VolumeSource{
					Secret: &corev1.SecretVolumeSource{
						SecretName:  secrets,
						DefaultMode: new(int32(0o400)),
						Items:       []corev1.KeyToPath{{Key: "password", Path: "p", Mode: new(int32(0o440))}},
					},
				})
			m.ReadOnly = true
		}},
		{name: "optional sources", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "no-secret",
				corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "absent", Optional: new(true)}})
			g.mount(p, "no-config",
				corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("absent"), Optional: new(true)},
				})
		}},
		{name: "downwardAPI", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "downward",
				corev1.VolumeSource{
					DownwardAPI: &corev1.DownwardAPIVolumeSource{
						DefaultMode: new(int32(0o640)),
						Items: []corev1.DownwardAPIVolumeFile{
							field("labels", "metadata.labels"), field("name", "metadata.name"),
							{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu",
								Divisor: resource.MustParse("1m")}, Mode: new(int32(0o444))},
						},
					},
				})
		}},
		{name: "projected", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "all",
				corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{
						DefaultMode: new(int32(0o644)),
						Sources: []corev1.VolumeProjection{
							{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref(settings),
								Items: []corev1.KeyToPath{{Key: "colour", Path: "colour", Mode: new(int32(0o600))}}}},
							{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("absent"), Optional: new(true)}},
							{Secret: &corev1.SecretProjection{LocalObjectReference: ref(secrets),
								Items: []corev1.KeyToPath{{Key: "user", Path: "who/user", Mode: new(int32(0o444))}}}},
							{Secret: &corev1.SecretProjection{LocalObjectReference: ref("absent"), Optional: new(true)}},
							{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
								field("note", "metadata.annotations"),
								{Path: "memory", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main",
									Resource: "requests.memory", Divisor: resource.MustParse("1Ki")}, Mode: new(int32(0o440))},
							}}},
							{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "audience",
								ExpirationSeconds: new(int64(3600))}},
							{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("absent"), Optional: new(true),
								Path: "named.pem"}},
							{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: new("example.com/absent"),
								LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "north"}},
								Optional:      new(true), Path: "signed.pem"}},
						},
					},
				})
		}},
		{name: "subPath", apply: func(g *Generator, p *corev1.Pod) {
			g.mount(p, "parts", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}).SubPath = "a/b"
		}},
		{name: "subPathExpr", apply: func(g *Generator, p *corev1.Pod) {
			main(p).Env = append(main(p).Env,
				corev1.EnvVar{
					Name:      "MY_POD",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
				})
			g.mount(p, "named-parts", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}).SubPathExpr = "of/$(MY_POD)"
		}},
		{name: "recursively read-only", apply: func(g *Generator, p *corev1.Pod) {
			m := g.mount(p, "sealed", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
			m.ReadOnly, m.RecursiveReadOnly = true, new(one(g, corev1.RecursiveReadOnlyIfPossible,
				corev1.RecursiveReadOnlyEnabled))
		}},
		{name: "bidirectional", alone: "privileges", apply: func(g *Generator, p *corev1.Pod) {
			ctx(main(p)).Privileged = new(true)
			g.mount(p, "both-ways",
				corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}).MountPropagation = new(
				corev1.MountPropagationBidirectional)
		}},
	}
}

// mount adds a volume and mounts it in the first container.
func (g *Generator) mount(p *corev1.Pod, name string, source corev1.VolumeSource) *corev1.VolumeMount {
	g.volume(p, name, source)
	c := main(p)
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: fmt.Sprintf("/mnt/%s", name)})
	return &c.VolumeMounts[len(c.VolumeMounts)-1]
}

func (g *Generator) volume(p *corev1.Pod, name string, source corev1.VolumeSource) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
}
