package objects

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// references lists the Secrets and ConfigMaps that a pod names.
func references(p *v1.Pod) (secrets, configMaps []string) {
	for _, ref := range p.Spec.ImagePullSecrets {
		secrets = append(secrets, ref.Name)
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Secret != nil {
			secrets = append(secrets, v.Secret.SecretName)
		}
		if v.ConfigMap != nil {
			configMaps = append(configMaps, v.ConfigMap.Name)
		}
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			if source := v.Projected.Sources[j].Secret; source != nil {
				secrets = append(secrets, source.Name)
			}
			if source := v.Projected.Sources[j].ConfigMap; source != nil {
				configMaps = append(configMaps, source.Name)
			}
		}
	}
	for c := range podutil.AllContainers(&p.Spec) {
		s, m := environmentReferences(c.Env, c.EnvFrom)
		secrets, configMaps = append(secrets, s...), append(configMaps, m...)
	}
	return secrets, configMaps
}

func environmentReferences(env []v1.EnvVar, from []v1.EnvFromSource) (secrets, configMaps []string) {
	for i := range from {
		if from[i].SecretRef != nil {
			secrets = append(secrets, from[i].SecretRef.Name)
		}
		if from[i].ConfigMapRef != nil {
			configMaps = append(configMaps, from[i].ConfigMapRef.Name)
		}
	}
	for i := range env {
		source := env[i].ValueFrom
		if source == nil {
			continue
		}
		if source.SecretKeyRef != nil {
			secrets = append(secrets, source.SecretKeyRef.Name)
		}
		if source.ConfigMapKeyRef != nil {
			configMaps = append(configMaps, source.ConfigMapKeyRef.Name)
		}
	}
	return secrets, configMaps
}
