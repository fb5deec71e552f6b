package criconfig

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	volume "github.com/microlet/microlet/services/podsync/internal/volumes"
)

// What a container does not see, or cannot write to, of /proc and /sys unless procMount is
// Unmasked. The lists are those of the kubelet, which follow moby's.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func sandboxSecurity(p *v1.Pod, users *runtimeapi.UserNamespace) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	namespaces, err := namespaceOptions(p, users)
	if err != nil {
		return nil, err
	}
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       anyPrivileged(p),
		NamespaceOptions: namespaces,
		// The sandbox's own process does next to nothing: it gets by with the runtime's profile
		// whatever the containers have.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	of := p.Spec.SecurityContext
	if of == nil {
		return sc, nil
	}
	sc.RunAsUser, sc.RunAsGroup = int64Value(of.RunAsUser), int64Value(of.RunAsGroup)
	sc.SelinuxOptions = selinuxOptions(of.SELinuxOptions)
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy, err = groups(of)
	return sc, err
}

func containerSecurity(p *v1.Pod, c *v1.Container, in *ContainerInput,
	n *Node) (*runtimeapi.LinuxContainerSecurityContext, error) {
	effective := effectiveSecurity(p, c)
	if err := verifyNonRoot(p, c, effective, in); err != nil {
		return nil, err
	}
	namespaces, err := namespaceOptions(p, in.UserNamespace)
	if err != nil {
		return nil, err
	}
	sc := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities:     capabilities(effective.Capabilities),
		Privileged:       isTrue(effective.Privileged),
		NamespaceOptions: namespaces,
		SelinuxOptions:   selinuxOptions(effective.SELinuxOptions),
		RunAsUser:        int64Value(effective.RunAsUser),
		RunAsGroup:       int64Value(effective.RunAsGroup),
		ReadonlyRootfs:   isTrue(effective.ReadOnlyRootFilesystem),
		NoNewPrivs:       effective.AllowPrivilegeEscalation != nil && !*effective.AllowPrivilegeEscalation,
		MaskedPaths:      slices.Concat(maskedPaths, n.ThermalPaths),
		ReadonlyPaths:    slices.Clone(readonlyPaths),
	}
	if effective.ProcMount != nil && *effective.ProcMount == v1.UnmaskedProcMount {
		sc.MaskedPaths, sc.ReadonlyPaths = []string{}, []string{}
	}
	if sc.RunAsUser == nil {
		sc.RunAsUser = int64Value(in.ImageUID)
		sc.RunAsUsername = in.ImageUser
	}
	if sc.Seccomp, err = seccomp(p, c, n); err != nil {
		return nil, err
	}
	//nolint:staticcheck // older runtimes read the old field alone
	if sc.Apparmor, sc.ApparmorProfile, err = appArmor(p, c); err != nil {
		return nil, err
	}
	if of := p.Spec.SecurityContext; of != nil {
		sc.SupplementalGroups, sc.SupplementalGroupsPolicy, err = groups(of)
	}
	sc.SupplementalGroups = append(sc.SupplementalGroups, volumeGroups(p, in.Volumes)...)
	return sc, err
}

// volumeGroups are the groups that the pod's volumes want, without those that the pod has. As with the kubelet, a
// volume gives its group to all containers, and what is no number is none.
func volumeGroups(p *v1.Pod, volumes map[string]volume.Mounted) []int64 {
	var groups []int64
	for _, v := range volumes {
		id, err := strconv.ParseInt(v.Group, 10, 64)
		if err == nil && (p.Spec.SecurityContext == nil || !slices.Contains(p.Spec.SecurityContext.SupplementalGroups, id)) {
			groups = append(groups, id)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// effectiveSecurity is the container's own context, with the pod's value for each field that only the pod sets.
func effectiveSecurity(p *v1.Pod, c *v1.Container) *v1.SecurityContext {
	sc := &v1.SecurityContext{}
	if c.SecurityContext != nil {
		sc = c.SecurityContext.DeepCopy()
	}
	of := p.Spec.SecurityContext
	if of == nil {
		return sc
	}
	if sc.SELinuxOptions == nil {
		sc.SELinuxOptions = of.SELinuxOptions
	}
	if sc.RunAsUser == nil {
		sc.RunAsUser = of.RunAsUser
	}
	if sc.RunAsGroup == nil {
		sc.RunAsGroup = of.RunAsGroup
	}
	if sc.RunAsNonRoot == nil {
		sc.RunAsNonRoot = of.RunAsNonRoot
	}
	return sc
}

// verifyNonRoot holds runAsNonRoot against the user that the container will have. A user
// that the image gives by name cannot be verified.
func verifyNonRoot(p *v1.Pod, c *v1.Container, effective *v1.SecurityContext, in *ContainerInput) error {
	if !isTrue(effective.RunAsNonRoot) {
		return nil
	}
	if user := effective.RunAsUser; user != nil {
		if *user == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", podText(p),
				c.Name)
		}
		return nil
	}
	switch {
	case in.ImageUID == nil && in.ImageUser != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root "+
			"(pod: %q, container: %s)", in.ImageUser, podText(p), c.Name)
	case in.ImageUID == nil:
		return nil
	case *in.ImageUID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", podText(p),
			c.Name)
	}
	if errs := validation.IsValidUserID(*in.ImageUID); len(errs) > 0 {
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): %s (pod: "+
			"%q, container: %s)",
			*in.ImageUID, math.MaxInt32, strings.Join(errs, "; "), podText(p), c.Name)
	}
	return nil
}

func namespaceOptions(p *v1.Pod, users *runtimeapi.UserNamespace) (*runtimeapi.NamespaceOption, error) {
	options := &runtimeapi.NamespaceOption{
		Network: NetworkMode(p), Ipc: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER,
	}
	if p.Spec.HostIPC {
		options.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case p.Spec.HostPID:
		options.Pid = runtimeapi.NamespaceMode_NODE
	case isTrue(p.Spec.ShareProcessNamespace):
		options.Pid = runtimeapi.NamespaceMode_POD
	}
	switch {
	case !podutil.OwnUsers(&p.Spec):
		users = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	case users.GetMode() != runtimeapi.NamespaceMode_POD || len(users.GetUids()) == 0 || len(users.GetGids()) == 0:
		return nil, errors.New("spec.hostUsers is false, and the pod has no user namespace") // it must not get the host's
	}
	options.UsernsOptions = users
	return options, nil
}

// mapOwners has the container see each file with the owner that it has on the node, whatever IDs of the host the pod's
// users have. Source: applyPlatformSpecificContainerConfig of the kubelet.
func mapOwners(config *runtimeapi.ContainerConfig) {
	users := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	for _, m := range config.GetMounts() {
		m.UidMappings, m.GidMappings = users.GetUids(), users.GetGids()
	}
}

func groups(of *v1.PodSecurityContext) ([]int64, runtimeapi.SupplementalGroupsPolicy, error) {
	var ids []int64
	if of.FSGroup != nil {
		ids = append(ids, *of.FSGroup)
	}
	ids = append(ids, of.SupplementalGroups...)
	if of.SupplementalGroupsPolicy == nil {
		return ids, runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	policy, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*of.SupplementalGroupsPolicy)]
	if !ok {
		return nil, 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *of.SupplementalGroupsPolicy)
	}
	return ids, runtimeapi.SupplementalGroupsPolicy(policy), nil
}

func seccomp(p *v1.Pod, c *v1.Container, n *Node) (*runtimeapi.SecurityProfile, error) {
	var profile *v1.SeccompProfile
	if of := p.Spec.SecurityContext; of != nil {
		profile = of.SeccompProfile
	}
	if of := c.SecurityContext; of != nil && of.SeccompProfile != nil {
		profile = of.SeccompProfile
	}
	switch {
	case profile == nil && n.SeccompDefault, profile != nil && profile.Type == v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case profile == nil || profile.Type != v1.SeccompProfileTypeLocalhost:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case profile.LocalhostProfile == nil || *profile.LocalhostProfile == "":
		return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost")
	}
	return &runtimeapi.SecurityProfile{
		ProfileType:  runtimeapi.SecurityProfile_Localhost,
		LocalhostRef: filepath.Join(n.RootDir, "seccomp", *profile.LocalhostProfile),
	}, nil
}

// appArmor returns the container's profile in CRI's form and in the older one.
func appArmor(p *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, string, error) {
	profile := pod.AppArmorProfile(p, c)
	if profile == nil {
		return nil, "", nil
	}
	switch profile.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			v1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
			v1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case v1.AppArmorProfileTypeLocalhost:
		if profile.LocalhostProfile == nil {
			return nil, "", errors.New("missing localhost apparmor profile name")
		}
		return &runtimeapi.SecurityProfile{
				ProfileType:  runtimeapi.SecurityProfile_Localhost,
				LocalhostRef: *profile.LocalhostProfile,
			},
			v1.DeprecatedAppArmorBetaProfileNamePrefix + *profile.LocalhostProfile, nil
	}
	return nil, "", fmt.Errorf("unknown apparmor profile type: %q", profile.Type)
}

func capabilities(of *v1.Capabilities) *runtimeapi.Capability {
	if of == nil {
		return nil
	}
	c := &runtimeapi.Capability{AddCapabilities: []string{}, DropCapabilities: []string{}}
	for _, name := range of.Add {
		c.AddCapabilities = append(c.AddCapabilities, string(name))
	}
	for _, name := range of.Drop {
		c.DropCapabilities = append(c.DropCapabilities, string(name))
	}
	return c
}

func selinuxOptions(of *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if of == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: of.User, Role: of.Role, Type: of.Type, Level: of.Level}
}

func anyPrivileged(p *v1.Pod) bool {
	for c := range podutil.AllContainers(&p.Spec) {
		if sc := c.SecurityContext; sc != nil && isTrue(sc.Privileged) {
			return true
		}
	}
	return false
}

func int64Value(of *int64) *runtimeapi.Int64Value {
	if of == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *of}
}

func isTrue(of *bool) bool { return of != nil && *of }
