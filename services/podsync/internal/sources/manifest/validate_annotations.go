package manifest

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Values of the annotations that profiles were set by before there were fields.
const (
	seccompPod       = "seccomp.security.alpha.kubernetes.io/pod"
	seccompContainer = "container.seccomp.security.alpha.kubernetes.io/"
	runtimeDefault   = "runtime/default"
	unconfined       = "unconfined"
	localhostPrefix  = "localhost/"
)

// annotations checks those that say something of the pod, and whether they agree with its fields.
func (c *check) annotations(at *field.Path) {
	names := map[string]bool{}
	for o := range podutil.Containers(&c.pod.Spec) {
		names[o.Name] = true
	}
	for key, value := range c.pod.Annotations {
		at := at.Key(key)
		appArmor, isAppArmor := strings.CutPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		profile, isLocal := strings.CutPrefix(value, localhostPrefix)
		known := isLocal || value == runtimeDefault || value == unconfined
		switch {
		case isAppArmor && !names[appArmor]:
			c.invalid(at, appArmor, "container not found")
		case isAppArmor && !known && value != "":
			c.invalid(at, value, "must be runtime/default, unconfined, or localhost/ with a profile")
		case key == seccompPod || strings.HasPrefix(key, seccompContainer):
			if !known && value != "docker/default" {
				c.invalid(at, value, "must be runtime/default, unconfined, or localhost/ with a profile")
			}
			if isLocal {
				c.insidePath(at, profile)
			}
		}
	}
}

// agreement refuses a profile that an annotation and a field name differently.
func (c *check) agreement(at *field.Path) {
	linux := c.pod.Spec.OS == nil || c.pod.Spec.OS.Name != v1.Windows
	sc := c.pod.Spec.SecurityContext
	if p := sc.SeccompProfile; p != nil {
		c.agree(at.Child("securityContext", "seccompProfile"), seccompPod, string(p.Type), p.LocalhostProfile)
	}
	for o := range podutil.Containers(&c.pod.Spec) {
		at, appArmor := at.Child("containers").Key(o.Name).Child("securityContext"), sc.AppArmorProfile
		if o.SecurityContext != nil {
			if p := o.SecurityContext.SeccompProfile; p != nil {
				c.agree(at.Child("seccompProfile"), seccompContainer+o.Name, string(p.Type), p.LocalhostProfile)
			}
			if p := o.SecurityContext.AppArmorProfile; p != nil {
				appArmor = p
			}
		}
		if appArmor != nil && linux {
			c.agree(at.Child("appArmorProfile"), v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+o.Name,
				string(appArmor.Type), appArmor.LocalhostProfile)
		}
	}
}

func (c *check) agree(at *field.Path, key, kind string, profile *string) {
	value, found := c.pod.Annotations[key]
	if !found {
		return
	}
	same := true
	switch kind {
	case "Unconfined":
		same = value == unconfined
	case "RuntimeDefault":
		same = value == runtimeDefault || key == seccompPod && value == "docker/default" ||
			strings.HasPrefix(key, seccompContainer) && value == "docker/default"
	case "Localhost":
		same = profile != nil && value == localhostPrefix+*profile
	}
	if !same {
		c.forbidden(at, "the annotation "+key+" says otherwise: remove it")
	}
}

// finalizers are those of Kubernetes, or of a domain.
func (c *check) finalizers(at *field.Path) {
	for i, name := range c.pod.Finalizers {
		switch name {
		case "kubernetes", "foregroundDeletion", "orphan":
		default:
			if !strings.Contains(name, "/") {
				c.invalid(at.Index(i), name, "must have a domain, such as example.com/name")
			}
		}
	}
}
