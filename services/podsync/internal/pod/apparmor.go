package pod

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// AppArmorProfile returns the container's profile, or nil. The container's field comes
// first, then the annotation that static pods may still have, then the pod's field.
func AppArmorProfile(p *v1.Pod, c *v1.Container) *v1.AppArmorProfile {
	if of := c.SecurityContext; of != nil && of.AppArmorProfile != nil {
		return of.AppArmorProfile
	}
	if profile := annotatedAppArmor(
		p.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]); profile != nil {
		return profile
	}
	if of := p.Spec.SecurityContext; of != nil {
		return of.AppArmorProfile
	}
	return nil
}

func annotatedAppArmor(value string) *v1.AppArmorProfile {
	switch value {
	case v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	case v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	}
	if name, ok := strings.CutPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix); ok {
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
