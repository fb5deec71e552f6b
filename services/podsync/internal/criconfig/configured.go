package criconfig

import (
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/podsync/internal/criconfig/internal/dns"
)

// Options of a Builder.
type Options struct {
	Kubelet *kubeletconfig.Config
	// LogLinks holds a link a container log; empty makes none.
	LogLinks    string
	Allocatable func() v1.ResourceList
	// HostIPs are the node's addresses, and RecursiveReadOnly whether a pod's runtime handler can mount read-only all the
	// way down.
	HostIPs           func() []string
	RecursiveReadOnly func(p *v1.Pod) bool
	Objects           Objects
	Services          Services
	SubPaths          SubPaths
	// Private returns the names of the node agent's own folder for a pod that may not have anything of it.
	Private func(p *v1.Pod) []string
	// Events about resolvers are of pods and of the Node.
	Events record.EventRecorder
	Node   *v1.ObjectReference
	Log    *slog.Logger
}

// New returns a Builder for this machine that works as the configuration says.
func New(o Options) (*Builder, error) {
	resolver, err := dns.Configured(o.Kubelet, o.Node, o.Events, o.Log)
	if err != nil {
		return nil, err
	}
	host, err := DefaultNode(o.Kubelet.Node.RootDir)
	if err != nil {
		return nil, err
	}
	k := &o.Kubelet.Kubelet
	host.PodLogsDir, host.ContainerLogsDir, host.LogsGroup = k.PodLogsDir, o.LogLinks, role.GroupLogs
	host.ClusterDomain, host.SeccompDefault = k.ClusterDomain, o.Kubelet.SeccompDefault()
	if o.Kubelet.FeatureEnabled("DefaultPodSysctls") {
		host.DefaultSysctls = k.DefaultPodSysctls
	}
	host.CPUCFSQuota, host.CPUCFSQuotaPeriod = *k.CPUCFSQuota, k.CPUCFSQuotaPeriod.Duration
	host.SingleProcessOOMKill, host.MemoryThrottlingFactor = k.SingleProcessOOMKill, k.MemoryThrottlingFactor
	host.StopSignals = o.Kubelet.FeatureEnabled("ContainerStopSignals")
	host.MemoryQoS, host.MemoryReservation = o.Kubelet.FeatureEnabled("MemoryQoS"), o.Kubelet.ReservesMemory()
	host.SwapBehavior = k.MemorySwap.SwapBehavior
	if host.SwapCapacity > 0 && !host.SwapController {
		o.Log.Warn("swap is on, and cgroups cannot keep containers from using it: the kernel has no controller of swap")
	}
	host.Allocatable, host.HostIPs, host.RecursiveReadOnly = o.Allocatable, o.HostIPs, o.RecursiveReadOnly
	return &Builder{Node: host, DNS: resolver, Objects: o.Objects, Services: o.Services, SubPaths: o.SubPaths,
		Private: o.Private}, nil
}
