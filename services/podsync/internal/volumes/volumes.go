package volumes

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	mount "k8s.io/mount-utils"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/cluster/podcertificate"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csiallocatable"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csinode"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/growth"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/inuse"
	volumemetrics "github.com/microlet/microlet/services/podsync/internal/volumes/internal/metrics"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/pluginregistration"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// Reports are how other services learn of volumes; see status.Reports.
type Reports interface {
	CSIDrivers(*podsyncv1.CSIDrivers)
	VolumesInUse(*podsyncv1.Volumes)
}

// Node is the Node in the API.
type Node interface {
	csinode.Object
	inuse.Node
}

// Options of Volumes.
type Options struct {
	Kubelet *kubeletconfig.Config
	// BootID is the kernel's name of this boot.
	BootID string
	// Children make the calls on foreign file systems.
	Children childpool.Runner
	Cluster  *cluster.Cluster
	// NodeName is the name of the node, and Node the Node in the API.
	NodeName string
	Node     Node
	Reports  Reports
	// Accepted registers a function, which is called with each list of volumes that the API server has accepted of the
	// node.
	Accepted func(call func(*nodestatusv1.Reported))
	// Allocatable is what pods may use of the node, and Private the node agent's own folder for pods that may not have
	// anything of it.
	Allocatable func() v1.ResourceList
	Private     func(p *v1.Pod) string
	// DevicePlugins take the device plugins that are found beside CSI drivers.
	DevicePlugins DevicePlugins
	// Gone is called with each pod whose folder was removed.
	Gone    func(uid types.UID)
	Events  record.EventRecorder
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Volumes set up and unmount the volumes of pods.
type Volumes struct {
	Manager *Manager

	certificates *podcertificate.Certificates
	csi          *csivolume.Volumes
	node         *csinode.Node
	allocatable  *csiallocatable.Updater
	plugins      *pluginregistration.Manager
}

// New makes nothing on the node yet.
func New(o Options) (*Volumes, error) {
	root := o.Kubelet.Node.RootDir
	certificates, err := o.Cluster.Certificates(o.NodeName, o.Node.Node, o.Events, o.Log)
	if err != nil {
		return nil, err
	}
	node := csinode.New(csinode.Options{
		Client: o.Cluster.CSI.Client, Name: o.NodeName, Object: o.Node,
		Publish: o.Reports.CSIDrivers, Log: o.Log,
	})
	drivers := csi.NewDrivers(root, node, o.Metrics)
	metrics := volumemetrics.New(o.Metrics, func(driver string) bool {
		_, err := drivers.Driver(driver)
		return err == nil
	})
	labels := selinuxlabel.New(selinuxlabel.Options{
		Host: selinuxlabel.ThisHost(), AnyAccess: o.Kubelet.FeatureEnabled("SELinuxMount"), Metrics: o.Metrics,
	})
	inUse := inuse.New(o.Node, o.Reports.VolumesInUse)
	o.Accepted(inUse.Heard)
	volumes := csivolume.New(csivolume.Options{
		ByNode:  !*o.Kubelet.Kubelet.EnableControllerAttachDetach,
		RootDir: root, Node: o.NodeName, Drivers: drivers, API: o.Cluster.CSI,
		Tokens: o.Cluster.Tokens, Devices: Devices{Foreign: o.Children},
		SubPaths: SubPaths{RootDir: root, Foreign: o.Children}, InUse: inUse, Metrics: metrics,
		SELinux: labels.Enabled(), Log: o.Log,
	})
	return &Volumes{
		Manager: NewManager(ManagerOptions{
			RootDir: root, BootID: o.BootID, Objects: o.Cluster.Objects, Tokens: o.Cluster.Tokens,
			TrustBundles: o.Cluster.TrustBundles, Certificates: certificates,
			Claims: o.Cluster.Claims(func() map[string]string { return o.Node.Node().Labels }), CSI: volumes,
			Expansion: growth.New(growth.Options{
				Client: o.Cluster.CSI.Client, Node: o.NodeName, Events: o.Events, Log: o.Log,
			}),
			NFSMounter: o.Kubelet.Node.ExperimentalMounterPath,
			Foreign:    o.Children, Mounter: mount.New(""), Allocatable: o.Allocatable, Private: o.Private, Gone: o.Gone,
			Events: o.Events, Metrics: metrics, Labels: labels, Log: o.Log,
		}),
		certificates: certificates, csi: volumes, node: node,
		allocatable: &csiallocatable.Updater{Drivers: drivers, Objects: o.Cluster.CSI, Log: o.Log},
		// Plugins of other types, those of DRA, are refused.
		plugins: pluginregistration.New(pluginregistration.Options{
			Root: root, Handlers: map[string]pluginregistration.Handler{
				csi.PluginType: drivers, registerapi.DevicePlugin: devicePlugins{o.DevicePlugins, o.Log},
			}, Log: o.Log, Metrics: o.Metrics,
		}),
	}, nil
}

// Start starts the tasks that register drivers, and unstage volumes that no pod has any more.
func (v *Volumes) Start(s run.Tasks) {
	s.Go("pod certificates", v.certificates.Run)
	s.Go("plugin registration", v.plugins.Run)
	s.Go("CSINode", v.node.Run)
	s.Go("CSINode's allocatable volumes", v.allocatable.Run)
	s.Go("CSI volumes", v.csi.Run)
	s.Go("volumes in use", v.csi.TellInUse)
}
