package cgroups

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/podcgroup"
)

const (
	// retryPeriod is how long a limit of all pods that could not be set is left alone (upstream:
	// enforceNodeAllocatableCgroups).
	retryPeriod = time.Minute

	reasonEnforced = "NodeAllocatableEnforced"
	reasonFailed   = "FailedNodeAllocatableEnforcement"
)

// Limits set the limits of cgroups; see Manager.
type Limits interface {
	PodsRoot() podcgroup.Name
	LimitPods() error
	LimitReserved(r Reserved) error
}

// EnforcerOptions of an Enforcer.
type EnforcerOptions struct {
	Kubelet *kubeletconfig.Config
	Cgroups Limits
	Events  record.EventRecorder
	// Node is what the Events are about.
	Node *v1.ObjectReference
	Log  *slog.Logger
}

// Enforcer enforces what pods and the daemons of the node may use (enforceNodeAllocatable).
//
// The limits of a reserved cgroup must be set before podsync starts, as with the kubelet. The limit of all pods is
// tried again each minute, because it fails while the pods use more than they may. The Node gets the kubelet's Events.
type Enforcer struct{ o EnforcerOptions }

// NewEnforcer returns an Enforcer, which has done nothing yet.
func NewEnforcer(o EnforcerOptions) *Enforcer { return &Enforcer{o} }

// level is one of enforceNodeAllocatable that limits a reserved cgroup.
type level struct {
	name, title     string
	failed          string // what the Event of a failure calls it
	compressible    bool
	cgroupField     string
	resourcesField  string
	cgroupName      func(k *kubeletconfig.Config) string
	resourcesByName func(k *kubeletconfig.Config) map[string]string
}

func systemCgroup(k *kubeletconfig.Config) string { return k.Kubelet.SystemReservedCgroup }
func kubeCgroup(k *kubeletconfig.Config) string   { return k.Kubelet.KubeReservedCgroup }

// reservedSystemCPUs, which overrides them, excludes reserved cgroups.
func systemResources(k *kubeletconfig.Config) map[string]string { return k.Kubelet.SystemReserved }
func kubeResources(k *kubeletconfig.Config) map[string]string   { return k.Kubelet.KubeReserved }

// levels are in the order in which the kubelet enforces them.
var levels = []level{
	{"system-reserved", "system reserved", "System Reserved", false,
		"systemReservedCgroup", "systemReserved", systemCgroup, systemResources},
	{"kube-reserved", "kube reserved", "Kube Reserved", false,
		"kubeReservedCgroup", "kubeReserved", kubeCgroup, kubeResources},
	{"system-reserved-compressible", "system reserved", "System Reserved Compressible", true,
		"systemReservedCgroup", "systemReserved", systemCgroup, systemResources},
	{"kube-reserved-compressible", "kube reserved", "Kube Reserved Compressible", true,
		"kubeReservedCgroup", "kubeReserved", kubeCgroup, kubeResources},
}

// Reservations limits the reserved cgroups that enforceNodeAllocatable names. An error says which field is wrong; the
// kubelet does not start with such a configuration either.
func (e *Enforcer) Reservations() error {
	k := e.o.Kubelet
	for _, l := range levels {
		if !slices.Contains(k.Kubelet.EnforceNodeAllocatable, l.name) {
			continue
		}
		name := l.cgroupName(k)
		limits, err := nodeinfo.Resources(l.resourcesField, l.resourcesByName(k))
		if err != nil {
			return err
		}
		if err := e.o.Cgroups.LimitReserved(Reserved{
			Cgroup: name, Limits: limits, CompressibleOnly: l.compressible, Protect: k.FeatureEnabled("MemoryQoS"),
		}); err != nil {
			e.o.Events.Eventf(e.o.Node, v1.EventTypeWarning, reasonFailed, "Failed to enforce %s Cgroup Limits on %q: %v",
				l.failed, name, err)
			return fmt.Errorf("enforceNodeAllocatable has %s, and %s=%s cannot be limited: %w", l.name, l.cgroupField,
				name, err)
		}
		e.o.Log.Info("limits of a reserved cgroup set", "cgroup", name, "level", l.name)
		e.o.Events.Eventf(e.o.Node, v1.EventTypeNormal, reasonEnforced, "Updated limits on %s cgroup %v", l.title, name)
	}
	return nil
}

// Run sets the limits of all pods, and ends when they are set or with ctx.
func (e *Enforcer) Run(ctx context.Context) error {
	root := e.o.Cgroups.PodsRoot()
	if len(root) == 0 {
		return nil
	}
	for {
		err := e.o.Cgroups.LimitPods()
		if err == nil {
			e.o.Events.Event(e.o.Node, v1.EventTypeNormal, reasonEnforced, "Updated Node Allocatable limit across pods")
			return nil
		}
		e.o.Log.Warn("limits of all pods not set, trying again in a minute", "cgroup", root.Cgroupfs(), logkey.Err, err)
		// The kubelet's message has the cgroup as a list of its parts.
		e.o.Events.Eventf(e.o.Node, v1.EventTypeWarning, reasonFailed, "Failed to update Node Allocatable Limits %q: %v",
			[]string(root), err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPeriod):
		}
	}
}
