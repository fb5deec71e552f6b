package devices

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
)

// Manager is the device manager of a node. Its methods may be called at the same time, before Run as well.
type Manager struct{}

// New returns a manager that has what the checkpoint file says. A file that cannot be used is set aside, and the
// manager begins with nothing; the log says so.
func New(o Options) *Manager { return &Manager{} }

// Run connects to the plugins that the file names, and works until the context ends. It returns when all its goroutines
// have ended. It is called once.
func (m *Manager) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Register connects to a plugin and returns when that has said what options it has, within 20 s. The endpoint is the
// path of its socket, absolute or in the folder device-plugins. A plugin that is registered with the same resource and
// endpoint already is replaced. The last plugin of a resource is the one that is asked for devices. Errors have the
// kubelet's words.
func (m *Manager) Register(ctx context.Context, resource, endpoint string, versions []string) error {
	return errors.ErrUnsupported
}

// Deregister ends the connection to a plugin, if there is one, and forgets its endpoint.
func (m *Manager) Deregister(resource, endpoint string) {}

// Needs reports whether a container of the pod asks for a resource that a plugin has or had.
func (m *Manager) Needs(pod *v1.Pod) bool { return false }

// Allocate decides on a pod, as AllocateRequest has it: placed are the pods that have a place, and running says that
// something of the pod runs. A pod that asks for nothing that a plugin has or had is granted nothing, without a
// container. The error is that of the checkpoint file or of the context; nothing is granted then.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod, placed []types.UID, running bool) (
	*resourcesv1.AllocateResponse, error) {
	return nil, errors.ErrUnsupported
}

// Prepare calls PreStartContainer of the plugins of a container that want it. It returns when all have answered, or
// one has failed.
func (m *Manager) Prepare(ctx context.Context, uid types.UID, container string) error {
	return errors.ErrUnsupported
}

// Pod returns what a pod was granted, with the health of now; nil if it was granted nothing. No one changes it.
func (m *Manager) Pod(uid types.UID) *resourcesv1.PodResources { return nil }

// Pods returns what all pods were granted.
func (m *Manager) Pods() map[types.UID]*resourcesv1.PodResources { return nil }

// Node returns the node's extended resources. It is nil after a start until each plugin that the file names has said
// what it has or has failed to, 30 s at most: what readers have of before stays true until then.
func (m *Manager) Node() *resourcesv1.NodeResources { return nil }

// Allocatable returns the healthy devices of each resource, ordered by resource and ID, as the podresources API's
// GetAllocatableResources has them.
func (m *Manager) Allocatable() []*resourcesv1.ContainerResources_Devices { return nil }

// Plugins returns the plugins with their devices, ordered by resource and endpoint, those that are away among them.
func (m *Manager) Plugins() []*resourcesv1.ListPluginsResponse_Plugin { return nil }

// Forget frees what pods that are gone were granted.
func (m *Manager) Forget(uids ...types.UID) {}

// Needed reports whether a plugin is or was registered or a pod has devices: a process that has nothing to do may end
// otherwise.
func (m *Manager) Needed() bool { return false }
