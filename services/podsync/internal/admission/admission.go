package admission

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// Runtime reports what runs, and as what.
type Runtime interface {
	Users
	// Running returns the pods of which something runs.
	Running(ctx context.Context) (map[types.UID]bool, error)
}

// Shutdown is that of the node; see package shutdown.
type Shutdown interface {
	Handler
	Ends(p *v1.Pod) *status.Override
}

// Options of an Admission.
type Options struct {
	Kubelet *kubeletconfig.Config
	// Helpers judge who may reach for what is the node agent's own, and HelperRecords is where they are recorded.
	Helpers       Helpers
	HelperRecords string
	Nodes         Nodes
	// Extended are the extended resources that the service resources hands out, and what pods may have of them.
	Extended func() (allocatable v1.ResourceList, known bool)
	// Pressure returns the conditions of the node's pressure.
	Pressure func() []v1.NodeConditionType
	Runtime  Runtime
	// Swaps reports whether a container gets swap.
	Swaps func(p *v1.Pod, c *v1.Container) bool
	// Shutdown admits nothing while the node shuts down, and ends what ran when an earlier podsync was killed then; nil
	// for a node that ends at once.
	Shutdown Shutdown
	// Evictor ends the pods that a critical pod preempts.
	Evictor Evictor
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Admission is this node's.
type Admission struct {
	// Recorder admits pods, and Containers their containers.
	*Recorder
	Containers Judge
	// Ends returns how a pod is to end at once, nil for a pod that may run: the node shuts down.
	Ends func(p *v1.Pod) *status.Override
	// Update returns why the node cannot do what a newer version of a pod needs; empty if it can.
	Update func(old, newer *v1.Pod) string
}

// NewHelpers returns what judges which pods may reach for the node agent's own folder and users; without a namespace
// no pod may.
func NewHelpers(namespace, runtimeDir string) Helpers {
	return Helpers{Namespace: namespace, Folders: FoldersOf(runtimeDir)}
}

// New returns an admission that knows no pods.
func New(o Options) (*Admission, error) {
	features, err := NewDeclaredFeatures(o.Kubelet.DeclaredFeatures(), kubeversion.Version)
	if err != nil {
		return nil, err
	}
	handlers, err := handlers(o.Kubelet, o.Pressure, features)
	if err != nil {
		return nil, err
	}
	ends := func(*v1.Pod) *status.Override { return nil }
	if o.Shutdown != nil {
		handlers, ends = append(handlers, o.Shutdown), o.Shutdown.Ends
	}
	resizes := append([]Handler{Resizable{
		PodLevel: o.Kubelet.FeatureEnabled("InPlacePodLevelResourcesVerticalScaling"), Swaps: o.Swaps,
	}}, handlers...)
	handlers = append(handlers, o.Helpers, ContainerNumber{})
	admitter := NewAdmitter(AdmitterOptions{
		Handlers: handlers, Resizes: resizes, Nodes: o.Nodes, Extended: o.Extended, Evictor: o.Evictor,
		Running: o.Runtime.Running, Metrics: o.Metrics, Log: o.Log,
	})
	return &Admission{
		Recorder:   newRecorder(admitter, o.Helpers, peer.Helpers{Dir: o.HelperRecords}, o.Log),
		Containers: NewJudge(o.Helpers, o.Runtime),
		Ends:       ends,
		Update:     features.Update,
	}, nil
}

// handlers are in the kubelet's order: the first that rejects is what the pod shows. That of a shutdown comes next, and
// ours last.
func handlers(k *kubeletconfig.Config, under func() []v1.NodeConditionType,
	features *DeclaredFeatures) ([]Handler, error) {
	kernel, err := kernelRelease()
	if err != nil {
		return nil, err
	}
	sysctls, err := NewSysctls(k.Kubelet.AllowedUnsafeSysctls, kernel)
	if err != nil {
		return nil, err
	}
	return []Handler{
		Pressure{Under: under}, sysctls, NodeFit{},
		AppArmor{Enabled: AppArmorEnabled()},
		PodLevelResources{Enabled: k.FeatureEnabled("PodLevelResources")}, features,
	}, nil
}

func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}
