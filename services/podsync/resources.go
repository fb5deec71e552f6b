package podsync

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/cgroups"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/images"
	"github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/node"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pods"
	"github.com/microlet/microlet/services/podsync/internal/userns"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// resourceOptions are what the resources of pods are made with.
type resourceOptions struct {
	*environment
	config *Config
	// runtimeDir is the node agent's own folder, which no pod but its helpers gets to see.
	runtimeDir string
	helpers    admission.Helpers
	reports    volumes.Reports
}

// resources are what pods run with. Workers use these parts, and package cleanup removes what they leave.
type resources struct {
	pods.Resources
	cgroups *cgroups.Manager
	config  *criconfig.Builder
	volumes *volumes.Volumes
	images  *images.Images
	logs    logs.Folders
	// orphan runs the hook of a running container of a pod without a worker.
	orphan func(ctx context.Context, state *pod.State, c *pod.Container)
	host   *node.Host
	limits *cgroups.Enforcer
}

// newResources makes the parts. Nothing is made on the node before prepare.
func newResources(ctx context.Context, s *service.Service, o *resourceOptions) (*resources, error) {
	k := o.config.Kubelet
	groups, err := o.newCgroups(s)
	if err != nil {
		return nil, err
	}
	users, err := userns.Configured(ctx, k, o.runtime, s.Log)
	if err != nil {
		return nil, err
	}
	mounted, err := volumes.New(volumes.Options{
		Kubelet: k, BootID: o.node.Capacity.BootID, Children: o.runtime.Children, Cluster: o.cluster,
		NodeName: o.name, Node: o.node.Object, Reports: o.reports, Accepted: acceptedBy(s.Bus), Allocatable: o.allocatable,
		DevicePlugins: o.grants, Private: o.privateFolder, Gone: users.Release,
		Events: o.events, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	pulled, err := images.New(images.Options{
		Kubelet: k, Runtime: o.runtime, Secrets: o.cluster.Objects, Accounts: o.cluster.Tokens,
		NeedsUser: admission.ReachesHost, Events: o.events, Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	config, err := o.newConfig(s, mounted.Manager)
	if err != nil {
		return nil, err
	}
	host, err := o.node.NewHost(mounted.Manager.KeepsOutOfSwap, o.events, s.Metrics, s.Log)
	if err != nil {
		return nil, err
	}
	hooks, err := pods.NewHooks(pods.HookOptions{
		Exec: o.runtime, Events: o.events, PodsDir: filepath.Join(k.Node.RootDir, "pods"), Log: s.Log, Metrics: s.Metrics,
	})
	if err != nil {
		return nil, err
	}
	folders := logs.Folders{Pods: k.Kubelet.PodLogsDir, Links: o.config.ContainerLogLinks, Group: role.GroupLogs}
	return &resources{
		Resources: pods.Resources{
			Images: pulled, Volumes: mounted.Manager, Cgroups: groups, Config: config, Objects: o.cluster.Objects,
			Logs: folders, Hooks: hooks, Users: users,
		},
		cgroups: groups, config: config, volumes: mounted, images: pulled, logs: folders, orphan: hooks.Orphan, host: host,
		limits: cgroups.NewEnforcer(cgroups.EnforcerOptions{
			Kubelet: k, Cgroups: groups, Events: o.events, Node: o.node.Reference, Log: s.Log,
		}),
	}, nil
}

// acceptedBy watches what the API server has accepted of the Node. The view calls back once the service runs.
func acceptedBy(from *bus.Client) func(heard func(*nodestatusv1.Reported)) {
	return func(heard func(*nodestatusv1.Reported)) {
		var view *bus.View[*nodestatusv1.Reported]
		view = bus.Watch[nodestatusv1.Reported](from, subject.Node, subject.NodeReported, func(string) {
			m, _ := view.Get(subject.NodeReported)
			heard(m)
		})
	}
}

// prepare makes the folders and cgroups that all pods share, before any of them is started.
func (r *resources) prepare() error {
	if err := r.logs.Make(); err != nil {
		return fmt.Errorf("make the node's folders: %w", err)
	}
	if err := r.images.Prepare(); err != nil {
		return err
	}
	if err := r.cgroups.EnsureRoots(); err != nil {
		return fmt.Errorf("make the node's cgroups: %w", err)
	}
	r.host.Report()
	return r.limits.Reservations()
}

// start limits what all pods together may use, and keeps what volumes are made with, until the service ends.
func (r *resources) start(s *service.Service) {
	s.Go("node allocatable", r.limits.Run)
	r.volumes.Start(s)
	r.images.Start(s)
}

func (o *resourceOptions) allocatable() v1.ResourceList { return o.node.Capacity.Allocatable }

// privateFolder is the node agent's folder for pods that are no helpers.
func (o *resourceOptions) privateFolder(p *v1.Pod) string {
	if o.helpers.Role(p) != "" {
		return ""
	}
	return o.runtimeDir
}

func (o *resourceOptions) newCgroups(s *service.Service) (*cgroups.Manager, error) {
	k := o.config.Kubelet
	if err := cgroups.CheckVersion(*k.Kubelet.FailCgroupV1); err != nil {
		return nil, err
	}
	options := cgroups.Configured(k, o.runtime.Driver.Name, s.Metrics, s.Log)
	options.Allocatable, options.Capacity = o.node.Capacity.Enforced, o.node.Capacity.Limits
	return cgroups.New(options)
}

// newConfig returns what turns pods into what CRI takes.
func (o *resourceOptions) newConfig(s *service.Service, subPaths criconfig.SubPaths) (*criconfig.Builder, error) {
	return criconfig.New(criconfig.Options{
		Kubelet: o.config.Kubelet, LogLinks: o.config.ContainerLogLinks, Allocatable: o.allocatable,
		HostIPs: o.node.HostIPs.Assumed, RecursiveReadOnly: o.runtime.State.RecursiveReadOnly,
		Objects: o.cluster.Objects, Services: o.cluster.Services, SubPaths: subPaths, Private: o.privateFolders,
		Events: o.events, Node: o.node.Reference, Log: s.Log,
	})
}

// privateFolders are all names of the node agent's folder, for pods that are no helpers.
func (o *resourceOptions) privateFolders(p *v1.Pod) []string {
	if o.privateFolder(p) == "" {
		return nil
	}
	return o.helpers.Folders
}
