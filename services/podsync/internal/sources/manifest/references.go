package manifest

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// references refuses what only the API could resolve: a static pod must start without it.
func (c *check) references(at *field.Path) {
	s := &c.pod.Spec
	refuse := func(at *field.Path, what string) {
		c.forbidden(at, "static pods may not reference "+what+": remove it")
	}
	if s.ServiceAccountName != "" {
		refuse(at.Child("serviceAccountName"), "serviceaccounts")
	}
	for i := range s.ImagePullSecrets {
		if s.ImagePullSecrets[i].Name != "" {
			refuse(at.Child("imagePullSecrets").Index(i), "secrets")
		}
	}
	if len(s.ResourceClaims) > 0 {
		refuse(at.Child("resourceClaims"), "resourceclaims")
	}
	for name, list := range map[string][]v1.Container{"initContainers": s.InitContainers, "containers": s.Containers} {
		for i := range list {
			at := at.Child(name).Index(i)
			for j, from := range list[i].EnvFrom {
				if from.ConfigMapRef != nil {
					refuse(at.Child("envFrom").Index(j), "configmaps")
				}
				if from.SecretRef != nil {
					refuse(at.Child("envFrom").Index(j), "secrets")
				}
			}
			for j, env := range list[i].Env {
				if env.ValueFrom == nil {
					continue
				}
				if env.ValueFrom.ConfigMapKeyRef != nil {
					refuse(at.Child("env").Index(j), "configmaps")
				}
				if env.ValueFrom.SecretKeyRef != nil {
					refuse(at.Child("env").Index(j), "secrets")
				}
			}
		}
	}
	for i := range s.Volumes {
		if what := volumeReference(&s.Volumes[i].VolumeSource); what != "" {
			refuse(at.Child("volumes").Index(i), what)
		}
	}
}

// volumeReference names the objects of the API that a volume needs; empty for none.
func volumeReference(v *v1.VolumeSource) string {
	switch {
	case v.ConfigMap != nil:
		return "configmaps"
	case v.Secret != nil:
		return "secrets"
	case v.CSI != nil:
		return "csidrivers"
	case v.Glusterfs != nil:
		return "endpoints"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistentvolumeclaims"
	case v.AzureFile != nil,
		v.CephFS != nil && v.CephFS.SecretRef != nil, v.Cinder != nil && v.Cinder.SecretRef != nil,
		v.FlexVolume != nil && v.FlexVolume.SecretRef != nil, v.ISCSI != nil && v.ISCSI.SecretRef != nil,
		v.RBD != nil && v.RBD.SecretRef != nil, v.ScaleIO != nil && v.ScaleIO.SecretRef != nil,
		v.StorageOS != nil && v.StorageOS.SecretRef != nil:
		return "secrets"
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			switch source := &v.Projected.Sources[i]; {
			case source.ConfigMap != nil:
				return "configmaps"
			case source.Secret != nil:
				return "secrets"
			case source.ServiceAccountToken != nil:
				return "serviceaccounts"
			case source.ClusterTrustBundle != nil:
				return "clustertrustbundles"
			case source.PodCertificate != nil:
				return "podcertificates"
			}
		}
	}
	return ""
}
