package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// AppArmor rejects pods with a profile that this machine could not enforce.
type AppArmor struct {
	// Enabled: the kernel enforces profiles.
	Enabled bool
}

// AppArmorEnabled reads whether this kernel enforces profiles.
func AppArmorEnabled() bool {
	if _, err := os.Stat("/sys/kernel/security/apparmor"); err != nil {
		return false
	}
	text, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(text), "Y")
}

// Admit implements Handler.
func (h AppArmor) Admit(_ context.Context, a *Attributes) Result {
	if phase := a.Pod.Status.Phase; phase != v1.PodPending && phase != "" {
		return Result{} // it runs: what it runs under is decided
	}
	if err := h.enforceable(a.Pod); err != nil {
		return Result{Reason: "AppArmor", Message: fmt.Sprintf("Cannot enforce AppArmor: %v", err)}
	}
	return Result{}
}

func (h AppArmor) enforceable(p *v1.Pod) error {
	containers := slices.Collect(podutil.AllContainers(&p.Spec))
	if !asksForAppArmor(p, containers) {
		return nil
	}
	if !h.Enabled {
		return errors.New("AppArmor is not enabled on the host")
	}
	for _, c := range containers {
		profile := pod.AppArmorProfile(p, c)
		if profile == nil || profile.Type != v1.AppArmorProfileTypeLocalhost {
			continue
		}
		if profile.LocalhostProfile == nil || strings.TrimSpace(*profile.LocalhostProfile) == "" {
			return fmt.Errorf("invalid empty AppArmor profile name: %q", profile)
		}
	}
	return nil
}

func asksForAppArmor(p *v1.Pod, containers []*v1.Container) bool {
	confines := func(profile *v1.AppArmorProfile) bool {
		return profile != nil && profile.Type != v1.AppArmorProfileTypeUnconfined
	}
	if sc := p.Spec.SecurityContext; sc != nil && confines(sc.AppArmorProfile) {
		return true
	}
	for _, c := range containers {
		if c.SecurityContext != nil && confines(c.SecurityContext.AppArmorProfile) {
			return true
		}
	}
	for key, value := range p.Annotations {
		if strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) &&
			value != v1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}
