package manifest

import (
	"path"
	"regexp"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	sysctlnames "k8s.io/component-helpers/node/util/sysctl"
)

// sysctlName is the form of a sysctl's name, with dots or slashes between its parts.
var sysctlName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)
})

const (
	maxSysctlName      = 253
	maxAppArmorProfile = 4095
)

// podSecurity is the pod's identity and the namespaces that it shares.
func (c *check) podSecurity(at *field.Path) {
	s, sc := &c.pod.Spec, c.pod.Spec.SecurityContext
	is := func(b *bool) bool { return b != nil && *b }
	if is(s.ShareProcessNamespace) && s.HostPID {
		c.invalid(at.Child("shareProcessNamespace"), true, "cannot be set together with hostPID: remove one of them")
	}
	if s.HostUsers != nil && !*s.HostUsers {
		for name, set := range map[string]bool{
			"hostNetwork": s.HostNetwork,
			"hostPID":     s.HostPID,
			"hostIPC":     s.HostIPC,
		} {
			if set {
				c.forbidden(at.Child(name), "when hostUsers is false: remove one of them")
			}
		}
	}
	at = at.Child("securityContext")
	c.ids(at, sc.RunAsUser, sc.RunAsGroup)
	if sc.FSGroup != nil {
		c.invalid(at.Child("fsGroup"), *sc.FSGroup, validation.IsValidGroupID(*sc.FSGroup)...)
	}
	for i, group := range sc.SupplementalGroups {
		c.invalid(at.Child("supplementalGroups").Index(i), group, validation.IsValidGroupID(group)...)
	}
	oneOfSet(c, at.Child("fsGroupChangePolicy"), sc.FSGroupChangePolicy, v1.FSGroupChangeOnRootMismatch,
		v1.FSGroupChangeAlways)
	oneOfSet(c, at.Child("supplementalGroupsPolicy"), sc.SupplementalGroupsPolicy, v1.SupplementalGroupsPolicyMerge,
		v1.SupplementalGroupsPolicyStrict)
	oneOfSet(c, at.Child("seLinuxChangePolicy"), sc.SELinuxChangePolicy, v1.SELinuxChangePolicyRecursive,
		v1.SELinuxChangePolicyMountOption)
	c.profiles(at, sc.SeccompProfile, sc.AppArmorProfile)
	if sc.WindowsOptions != nil && s.OS != nil && s.OS.Name == v1.Linux {
		c.forbidden(at.Child("windowsOptions"), "cannot be set for a linux pod: remove it")
	}
	names := sets.New[string]()
	for i, sysctl := range sc.Sysctls {
		at := at.Child("sysctls").Index(i).Child("name")
		namespace, _, _ := sysctlnames.GetNamespace(sysctl.Name)
		switch {
		case s.HostNetwork && namespace == sysctlnames.NetNamespace:
			c.invalid(at, sysctl.Name, "may not be set with hostNetwork: it would be the node's")
		case s.HostIPC && namespace == sysctlnames.IPCNamespace:
			c.invalid(at, sysctl.Name, "may not be set with hostIPC: it would be the node's")
		}
		switch {
		case sysctl.Name == "":
			c.required(at, "give the sysctl's name")
		case len(sysctl.Name) > maxSysctlName || !sysctlName().MatchString(sysctl.Name):
			c.invalid(at, sysctl.Name, "must be a sysctl's name, such as net.ipv4.tcp_syncookies")
		case names.Has(sysctl.Name):
			c.duplicate(at, sysctl.Name)
		}
		names.Insert(sysctl.Name)
	}
}

func (c *check) ids(at *field.Path, user, group *int64) {
	if user != nil {
		c.invalid(at.Child("runAsUser"), *user, validation.IsValidUserID(*user)...)
	}
	if group != nil {
		c.invalid(at.Child("runAsGroup"), *group, validation.IsValidGroupID(*group)...)
	}
}

func (c *check) profiles(at *field.Path, seccomp *v1.SeccompProfile, appArmor *v1.AppArmorProfile) {
	if seccomp != nil {
		at := at.Child("seccompProfile")
		oneOf(c, at.Child("type"), seccomp.Type, v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault,
			v1.SeccompProfileTypeUnconfined)
		c.localhost(at, seccomp.Type == v1.SeccompProfileTypeLocalhost, seccomp.LocalhostProfile, true)
	}
	if appArmor != nil {
		at := at.Child("appArmorProfile")
		oneOf(c, at.Child("type"), appArmor.Type, v1.AppArmorProfileTypeLocalhost, v1.AppArmorProfileTypeRuntimeDefault,
			v1.AppArmorProfileTypeUnconfined)
		c.localhost(at, appArmor.Type == v1.AppArmorProfileTypeLocalhost, appArmor.LocalhostProfile, false)
	}
}

func (c *check) localhost(at *field.Path, is bool, profile *string, isPath bool) {
	at = at.Child("localhostProfile")
	switch {
	case is && (profile == nil || !isPath && strings.TrimSpace(*profile) == ""):
		c.required(at, "must be set when type is Localhost")
	case !is && profile != nil:
		c.invalid(at, *profile, "may only be set when type is Localhost")
	case is && isPath:
		c.insidePath(at, *profile)
	case is && strings.TrimSpace(*profile) != *profile:
		c.invalid(at, *profile, "must not have leading or trailing whitespace")
	case is && len(*profile) > maxAppArmorProfile:
		c.invalid(at, *profile, "must not be longer than 4095 bytes")
	}
}

// insidePath refuses a path that leads out of the folder that it is under.
func (c *check) insidePath(at *field.Path, p string) {
	if path.IsAbs(p) {
		c.invalid(at, p, "must be a relative path")
	}
	c.noDots(at, p)
}

func (c *check) noDots(at *field.Path, p string) {
	for _, part := range strings.Split(p, "/") {
		if part == ".." {
			c.invalid(at, p, "must not contain '..'")
			return
		}
	}
}

// containerSecurity is one container's securityContext.
func (c *check) containerSecurity(at *field.Path, sc *v1.SecurityContext) {
	if sc == nil {
		return
	}
	at = at.Child("securityContext")
	c.ids(at, sc.RunAsUser, sc.RunAsGroup)
	c.profiles(at, sc.SeccompProfile, sc.AppArmorProfile)
	privileged := sc.Privileged != nil && *sc.Privileged
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if privileged {
			c.invalid(at, "allowPrivilegeEscalation: false",
				"cannot be set together with privileged: remove one of them")
		}
		if sc.Capabilities != nil {
			for _, capability := range sc.Capabilities.Add {
				if capability == "CAP_SYS_ADMIN" {
					c.invalid(at, "allowPrivilegeEscalation: false",
						"cannot be set together with the capability CAP_SYS_ADMIN: remove one of them")
				}
			}
		}
	}
	if sc.ProcMount != nil {
		oneOf(c, at.Child("procMount"), *sc.ProcMount, v1.DefaultProcMount, v1.UnmaskedProcMount)
		if *sc.ProcMount == v1.UnmaskedProcMount && (c.pod.Spec.HostUsers == nil || *c.pod.Spec.HostUsers) {
			c.invalid(at.Child("procMount"), *sc.ProcMount, "hostUsers must be false to use Unmasked")
		}
	}
	if sc.WindowsOptions != nil && c.pod.Spec.OS != nil && c.pod.Spec.OS.Name == v1.Linux {
		c.forbidden(at.Child("windowsOptions"), "cannot be set for a linux pod: remove it")
	}
}
