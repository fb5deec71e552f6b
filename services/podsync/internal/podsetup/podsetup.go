// Package podsetup provides what pods run with: cgroups, volumes, images, logs, hooks and the CRI configuration.
//
// Workers use these parts, and package housekeeping removes what they leave. All parts share one view of the node,
// such as its addresses and its allocatable resources.
package podsetup

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	cgroup "github.com/microlet/microlet/services/podsync/internal/cgroups"
	"github.com/microlet/microlet/services/podsync/internal/cgroups/allocatable"
	"github.com/microlet/microlet/services/podsync/internal/cgroups/userns"
	"github.com/microlet/microlet/services/podsync/internal/children"
	"github.com/microlet/microlet/services/podsync/internal/cluster"
	"github.com/microlet/microlet/services/podsync/internal/cri"
	"github.com/microlet/microlet/services/podsync/internal/hook"
	"github.com/microlet/microlet/services/podsync/internal/images"
	podlogs "github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/machine"
	"github.com/microlet/microlet/services/podsync/internal/network"
	"github.com/microlet/microlet/services/podsync/internal/podconfig"
	"github.com/microlet/microlet/services/podsync/internal/podvolumes"
	"github.com/microlet/microlet/services/podsync/internal/thisnode"
	"github.com/microlet/microlet/services/podsync/internal/volume"
	"github.com/microlet/microlet/services/podsync/internal/worker"
)

// RunChild makes calls on foreign file systems if the process was started to be such a child, and returns true when it
// is to end. A program that contains podsync calls it first of all.
func RunChild() bool { return children.Run() }

// Options of Resources.
type Options struct {
	Kubelet *kubeletconfig.Config
	// LogLinks holds a link a container log; empty makes none.
	LogLinks string
	// RuntimeDir is the node agent's own folder, which no pod but its helpers gets to see.
	RuntimeDir string
	Helpers    admission.Helpers
	Capacity   machine.Capacity
	Runtime    *cri.Runtime
	Cluster    *cluster.Cluster
	Node       *thisnode.Node
	Reports    podvolumes.Reports
	Bus        *bus.Client
	Events     record.EventRecorder
	Log        *slog.Logger
	Metrics    prometheus.Registerer
}

// Resources are the parts.
type Resources struct {
	Cgroups *cgroup.Manager
	Volumes *volume.Manager
	Logs    podlogs.Folders
	Hooks   *hook.Runner
	Images  *images.Images

	volumes *podvolumes.Volumes
	host    *host
	workers worker.Resources
	limits  *allocatable.Enforcer
}

// New makes the parts. Nothing is made on the node before Prepare.
func New(ctx context.Context, o Options) (*Resources, error) {
	cgroups, err := o.newCgroups()
	if err != nil {
		return nil, err
	}
	users, err := o.newUsers(ctx)
	if err != nil {
		return nil, err
	}
	volumes, err := podvolumes.New(podvolumes.Options{
		Kubelet: o.Kubelet, BootID: o.Capacity.BootID, Children: o.Runtime.Children, Cluster: o.Cluster, Node: o.Node,
		Reports: o.Reports, Bus: o.Bus, Allocatable: o.allocatable, Private: o.privateFolder, Gone: users.Release,
		Events: o.Events, Log: o.Log, Metrics: o.Metrics,
	})
	if err != nil {
		return nil, err
	}
	config, err := o.newConfig(volumes.Manager)
	if err != nil {
		return nil, err
	}
	pulled, err := images.New(images.Options{
		Kubelet: o.Kubelet, Runtime: o.Runtime, Secrets: o.Cluster.Objects, Accounts: o.Cluster.Tokens,
		NeedsUser: admission.ReachesHost, Events: o.Events, Log: o.Log, Metrics: o.Metrics,
	})
	if err != nil {
		return nil, err
	}
	told, err := o.newHost(volumes.Manager.KeepsOutOfSwap)
	if err != nil {
		return nil, err
	}
	hooks, err := hook.New(hook.Options{
		Exec: o.Runtime, Events: o.Events, PodsDir: filepath.Join(o.Kubelet.Node.RootDir, "pods"), Log: o.Log,
		Metrics: o.Metrics,
	})
	if err != nil {
		return nil, err
	}
	logs := podlogs.Folders{Pods: o.Kubelet.Kubelet.PodLogsDir, Links: o.LogLinks, Group: role.GroupLogs}
	return &Resources{Cgroups: cgroups, Volumes: volumes.Manager, Logs: logs, Hooks: hooks, Images: pulled,
		volumes: volumes, host: told,
		workers: worker.Resources{
			Images: pulled, Volumes: volumes.Manager, Cgroups: cgroups, Config: config, Objects: o.Cluster.Objects, Logs: logs,
			Hooks: hooks, Users: users,
		},
		limits: allocatable.New(allocatable.Options{
			Kubelet: o.Kubelet, Cgroups: cgroups, Events: o.Events, Node: o.Node.Reference, Log: o.Log,
		}),
	}, nil
}

// Prepare makes the folders and cgroups that all pods share, before any of them is started.
func (r *Resources) Prepare() error {
	if err := r.Logs.Make(); err != nil {
		return fmt.Errorf("make the node's folders: %w", err)
	}
	if err := r.Images.Prepare(); err != nil {
		return err
	}
	if err := r.Cgroups.EnsureRoots(); err != nil {
		return fmt.Errorf("make the node's cgroups: %w", err)
	}
	r.host.tell()
	return r.limits.Reservations()
}

// Start limits what all pods together may use, and keeps what volumes are made with, until the service ends.
func (r *Resources) Start(s *service.Service) {
	s.Go("node allocatable", r.limits.Run)
	r.volumes.Start(s)
	r.Images.Start(s)
}

// ForWorkers is what workers give their pods.
func (r *Resources) ForWorkers() worker.Resources { return r.workers }

func (o *Options) allocatable() v1.ResourceList { return o.Capacity.Allocatable }

// privateFolder is the node agent's folder for pods that are no helpers.
func (o *Options) privateFolder(p *v1.Pod) string {
	if o.Helpers.Role(p) != "" {
		return ""
	}
	return o.RuntimeDir
}

func (o *Options) newCgroups() (*cgroup.Manager, error) {
	k := &o.Kubelet.Kubelet
	if err := cgroup.CheckVersion(*k.FailCgroupV1); err != nil {
		return nil, err
	}
	throttling, metrics := k.MemoryThrottlingFactor, o.Metrics
	if !o.Kubelet.FeatureEnabled("MemoryQoS") {
		throttling, metrics = nil, nil
	}
	return cgroup.New(cgroup.Options{
		MemoryThrottlingFactor: throttling, MemoryReservation: o.Kubelet.ReservesMemory(),
		QOSReserved: o.Kubelet.QOSReserved(),
		Root:        k.CgroupRoot, Driver: o.Runtime.Driver.Name, PerQOS: *k.CgroupsPerQOS,
		CPUCFSQuota: *k.CPUCFSQuota, CPUCFSQuotaPeriod: k.CPUCFSQuotaPeriod.Duration,
		PodPidsLimit: *k.PodPidsLimit, EnforceNodeAllocatable: k.EnforceNodeAllocatable,
		Allocatable: o.Capacity.Enforced, Capacity: o.Capacity.Limits, Metrics: metrics, Log: o.Log,
	})
}

// newUsers reads which pods have which user IDs.
func (o *Options) newUsers(ctx context.Context) (*userns.Manager, error) {
	k := &o.Kubelet.Kubelet
	perPod := uint32(userns.Unit)
	if of := k.UserNamespaces; of != nil && of.IDsPerPod != nil {
		perPod = uint32(*of.IDsPerPod) // which was validated
	}
	return userns.New(ctx, userns.Options{
		PodsDir: filepath.Join(o.Kubelet.Node.RootDir, "pods"), IDsPerPod: perPod, MaxPods: int(k.MaxPods),
		Host: userns.Machine{}, Runtime: o.Runtime, Log: o.Log,
	})
}

// newConfig returns what turns pods into what CRI takes.
func (o *Options) newConfig(volumes *volume.Manager) (*podconfig.Builder, error) {
	resolver, err := o.newResolver()
	if err != nil {
		return nil, err
	}
	host, err := podconfig.DefaultNode(o.Kubelet.Node.RootDir)
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
	host.Allocatable = o.allocatable
	host.HostIPs = o.Node.HostIPs.Assumed
	host.RecursiveReadOnly = o.Runtime.State.RecursiveReadOnly
	return &podconfig.Builder{
		Node: host, DNS: resolver, Objects: o.Cluster.Objects, Services: o.Cluster.Services, SubPaths: volumes,
	}, nil
}

func (o *Options) newResolver() (*network.Configurer, error) {
	k := &o.Kubelet.Kubelet
	dns, err := clusterDNS(k.ClusterDNS)
	if err != nil {
		return nil, err
	}
	resolver := network.New(network.Options{
		NodeIPs: o.Kubelet.NodeIPs(), ClusterDNS: dns, ClusterDomain: k.ClusterDomain, ResolvConf: *k.ResolverConfig,
		Log:  o.Log,
		Warn: func(p *v1.Pod, reason, message string) { o.Events.Event(p, v1.EventTypeWarning, reason, message) },
		WarnNode: func(reason, message string) {
			o.Events.Event(o.Node.Reference, v1.EventTypeWarning, reason,
				message)
		},
	})
	_ = resolver.Check() // which logs and records an Event of the Node
	if program := o.Kubelet.Node.ExperimentalMounterPath; program != "" {
		resolver.SetUpMounter(program)
	}
	return resolver, nil
}

func clusterDNS(servers []string) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(servers))
	for _, s := range servers {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("clusterDNS: %w", err)
		}
		out = append(out, ip)
	}
	return out, nil
}
