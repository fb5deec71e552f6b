package admission

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/microlet/microlet/services/internal/podutil"
)

// safeSysctls are namespaced and bounded, so that any pod may set them, each with the
// kernel from which that holds: the kubelet's list of 1.37.
var safeSysctls = []struct{ name, since string }{
	{"kernel.shm_rmid_forced", "0.0"},
	{"net.ipv4.ip_local_port_range", "0.0"},
	{"net.ipv4.tcp_syncookies", "0.0"},
	{"net.ipv4.ping_group_range", "0.0"},
	{"net.ipv4.ip_unprivileged_port_start", "0.0"},
	{"net.ipv4.ip_local_reserved_ports", "3.16"},
	{"net.ipv4.tcp_keepalive_time", "4.5"},
	{"net.ipv4.tcp_fin_timeout", "4.6"},
	{"net.ipv4.tcp_keepalive_intvl", "4.5"},
	{"net.ipv4.tcp_keepalive_probes", "4.5"},
	{"net.ipv4.tcp_rmem", "4.15"},
	{"net.ipv4.tcp_wmem", "4.15"},
	{"net.ipv4.tcp_slow_start_after_idle", "4.15"},
	{"net.ipv4.tcp_notsent_lowat", "4.6"},
}

const maxSysctlName = 253

// A pattern is a sysctl, with dots or slashes, that may end in a star.
var sysctlPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)
})

// Sysctls admits a pod if its sysctls are safe, or allowed by allowedUnsafeSysctls, and belong to a namespace of the
// pod's own.
type Sysctls struct {
	names, prefixes map[string]sysctl.Namespace
}

// NewSysctls takes allowedUnsafeSysctls and the release of the running kernel.
func NewSysctls(allowed []string, kernel string) (*Sysctls, error) {
	running, err := version.ParseGeneric(kernel)
	if err != nil {
		return nil, fmt.Errorf("kernel release %q: %w", kernel, err)
	}
	s := &Sysctls{names: map[string]sysctl.Namespace{}, prefixes: map[string]sysctl.Namespace{}}
	var errs []error
	for _, safe := range safeSysctls {
		if running.AtLeast(version.MustParseGeneric(safe.since)) {
			errs = append(errs, s.allow(safe.name))
		}
	}
	for _, pattern := range allowed {
		if len(pattern) > maxSysctlName || !sysctlPattern().MatchString(pattern) {
			errs = append(errs,
				fmt.Errorf("allowedUnsafeSysctls: %q is no sysctl: write it with dots or slashes, in %d characters at most; a "+
					"last * stands for anything",
					pattern, maxSysctlName))
			continue
		}
		errs = append(errs, s.allow(pattern))
	}
	return s, errors.Join(errs...)
}

func (s *Sysctls) allow(pattern string) error {
	namespace, name, prefix := sysctl.GetNamespace(pattern)
	switch {
	case namespace == sysctl.UnknownNamespace:
		return fmt.Errorf("allowedUnsafeSysctls: %q is not known to be namespaced: a pod that set it would set it for the "+
			"whole machine, remove it", pattern)
	case prefix:
		s.prefixes[name] = namespace
	default:
		s.names[name] = namespace
	}
	return nil
}

// Admit implements Handler.
func (s *Sysctls) Admit(_ context.Context, a *Attributes) Result {
	if a.Pod.Spec.SecurityContext == nil {
		return Result{}
	}
	for _, one := range a.Pod.Spec.SecurityContext.Sysctls {
		if err := s.check(sysctl.NormalizeName(one.Name), &a.Pod.Spec); err != nil {
			return Result{Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %v", err)}
		}
	}
	return Result{}
}

func (s *Sysctls) check(name string, spec *v1.PodSpec) error {
	namespace, ok := s.names[name]
	for prefix, of := range s.prefixes {
		if !ok && strings.HasPrefix(name, prefix) {
			namespace, ok = of, true
		}
	}
	if !ok {
		return fmt.Errorf("%q not allowlisted", name)
	}
	shared := map[sysctl.Namespace]bool{
		sysctl.IPCNamespace: spec.HostIPC, sysctl.NetNamespace: spec.HostNetwork,
		sysctl.UserNamespace: !podutil.OwnUsers(spec),
	}
	if shared[namespace] {
		return fmt.Errorf("%q not allowed with host %s enabled", name, namespace)
	}
	return nil
}
