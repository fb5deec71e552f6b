// Package podadmission connects the handlers that decide what this node runs.
//
// It runs the handlers in the kubelet's order, so a pod shows the same rejection as with the kubelet. It also ends the
// pods that a critical pod preempts, and records the helper pods.
package podadmission

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/internal/pressure"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/containeradmission"
	"github.com/microlet/microlet/services/podsync/internal/helperpods"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/victimeviction"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// Runtime tells what runs, and as what.
type Runtime interface {
	containeradmission.Runtime
	// Running tells of which pods something runs.
	Running(ctx context.Context) (map[types.UID]bool, error)
}

// Shutdown is that of the node; see nodeshutdown.Manager.
type Shutdown interface {
	admission.Handler
	Ends(p *v1.Pod) *status.Override
}

// Options of an Admission.
type Options struct {
	Kubelet *kubeletconfig.Config
	// Helpers judge who may reach for what is the node agent's own, and HelperRecords is where they are recorded.
	Helpers       admission.Helpers
	HelperRecords string
	Nodes         admission.Nodes
	// Bus has the node's pressure.
	Bus     *bus.Client
	Runtime Runtime
	// Shutdown admits nothing while the node shuts down, and ends what ran when an earlier podsync was killed then; nil
	// for a node that ends at once.
	Shutdown Shutdown
	Workers  victimeviction.Workers
	Events   record.EventRecorder
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Admission is this node's.
type Admission struct {
	admitter   *admission.Admitter
	pods       *helperpods.Admission
	containers containeradmission.Judge
	ends       func(p *v1.Pod) *status.Override
}

// Helpers judge who may reach for the node agent's own folder and users; without a namespace there are none.
func Helpers(namespace, runtimeDir string) admission.Helpers {
	return admission.Helpers{Namespace: namespace, Folders: admission.FoldersOf(runtimeDir)}
}

// New returns an admission that knows no pods.
func New(o Options) (*Admission, error) {
	handlers, err := handlers(o.Kubelet, pressure.Watch(o.Bus).Under)
	if err != nil {
		return nil, err
	}
	ends := func(*v1.Pod) *status.Override { return nil }
	if o.Shutdown != nil {
		handlers, ends = append(handlers, o.Shutdown), o.Shutdown.Ends
	}
	handlers = append(handlers, o.Helpers)
	admitter := admission.NewAdmitter(admission.Options{
		Handlers: handlers, Nodes: o.Nodes, Evictor: victimeviction.New(o.Workers, o.Events), Running: o.Runtime.Running,
		Metrics: o.Metrics, Log: o.Log,
	})
	return &Admission{
		admitter:   admitter,
		pods:       helperpods.New(admitter, o.Helpers, peer.Helpers{Dir: o.HelperRecords}, o.Log),
		containers: containeradmission.New(o.Helpers, o.Runtime),
		ends:       ends,
	}, nil
}

// handlers are in the kubelet's order: the first that rejects is what the pod shows. That of a shutdown comes next, and
// ours last.
func handlers(k *kubeletconfig.Config, under func() []v1.NodeConditionType) ([]admission.Handler, error) {
	kernel, err := kernelRelease()
	if err != nil {
		return nil, err
	}
	sysctls, err := admission.NewSysctls(k.Kubelet.AllowedUnsafeSysctls, kernel)
	if err != nil {
		return nil, err
	}
	features, err := admission.NewDeclaredFeatures(k.DeclaredFeatures(), kubeversion.Version)
	if err != nil {
		return nil, err
	}
	return []admission.Handler{
		admission.Pressure{Under: under}, sysctls, admission.NodeFit{},
		admission.AppArmor{Enabled: admission.AppArmorEnabled()},
		admission.PodLevelResources{Enabled: k.FeatureEnabled("PodLevelResources")}, features,
	}, nil
}

func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

// ForWorkers is what workers ask.
func (a *Admission) ForWorkers() worker.Admissions {
	return worker.Admissions{Admission: a.pods, ContainerAdmission: a.containers, Ends: a.ends}
}

// Judge returns the result that a pod would get now, and keeps nothing of it.
func (a *Admission) Judge(ctx context.Context, p *v1.Pod) admission.Result {
	return a.admitter.Judge(ctx, p)
}

// Sweep removes, once every source was heard, what an earlier podsync recorded of helpers that are gone.
func (a *Admission) Sweep(ctx context.Context, workers helperpods.Workers) error {
	return a.pods.Sweep(ctx, workers)
}
