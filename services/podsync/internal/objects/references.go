package objects

import (
	v1 "k8s.io/api/core/v1"
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
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			s, c := environmentReferences(list[i].Env, list[i].EnvFrom)
			secrets, configMaps = append(secrets, s...), append(configMaps, c...)
		}
	}
	for i := range p.Spec.EphemeralContainers {
		e := &p.Spec.EphemeralContainers[i]
		s, c := environmentReferences(e.Env, e.EnvFrom)
		secrets, configMaps = append(secrets, s...), append(configMaps, c...)
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
