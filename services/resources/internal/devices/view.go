package devices

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/answer"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/ledger"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/registry"
)

// count is how many devices a resource has.
type count struct {
	name                  string
	capacity, allocatable int
}

// count counts the devices of all resources. Call with mu held.
func (m *Manager) count() []count {
	var counts []count
	for _, r := range m.registry.Resources() {
		counts = append(counts, count{r.Name, len(r.Reported()), len(r.Healthy())})
	}
	return counts
}

// Node returns the node's extended resources. It is nil after a start until each plugin that the file names has said
// what it has or has failed to, 30 s at most: what readers have of before stays true until then.
func (m *Manager) Node() *resourcesv1.NodeResources {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.unsettled) > 0 {
		return nil
	}
	node := &resourcesv1.NodeResources{}
	for _, c := range m.count() {
		node.Resources = append(node.Resources, &resourcesv1.NodeResources_Resource{
			Name: c.name, Capacity: int64(c.capacity), Allocatable: int64(c.allocatable),
		})
	}
	return node
}

// Allocatable returns the healthy devices of each resource, ordered by resource and ID, as the podresources API's
// GetAllocatableResources has them.
func (m *Manager) Allocatable() []*resourcesv1.ContainerResources_Devices {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*resourcesv1.ContainerResources_Devices
	for _, r := range m.registry.Resources() {
		healthy := &resourcesv1.ContainerResources_Devices{Resource: r.Name}
		for _, id := range r.Healthy() {
			healthy.Devices = append(healthy.Devices, &resourcesv1.Device{
				Id: id, Health: resourcesv1.Health_HEALTH_HEALTHY, NumaNodes: r.Primary().Devices[id].NUMA,
			})
		}
		if len(healthy.Devices) > 0 {
			all = append(all, healthy)
		}
	}
	return all
}

// Plugins returns the plugins with their devices, ordered by resource and endpoint, those that are away among them. A
// resource of the file of which no plugin is known has one without an endpoint.
func (m *Manager) Plugins() []*resourcesv1.ListPluginsResponse_Plugin {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*resourcesv1.ListPluginsResponse_Plugin
	for _, r := range m.registry.Resources() {
		held := m.inUse(r.Name)
		entries := slices.Clone(r.Entries())
		if len(entries) == 0 {
			entries = []*registry.Entry{{Problem: r.Problem()}}
		}
		slices.SortFunc(entries, func(a, b *registry.Entry) int {
			if a.Endpoint < b.Endpoint {
				return -1
			}
			return 1
		})
		for _, e := range entries {
			all = append(all, describe(r.Name, e, held))
		}
	}
	return all
}

// inUse are the devices that pods have or may get, but those that are gone. Call with mu held.
func (m *Manager) inUse(resource string) map[string]bool {
	held := m.ledger.Held(resource, "")
	for uid := range m.left {
		for id := range m.ledger.HeldBy(uid, resource) {
			delete(held, id)
		}
	}
	return held
}

func describe(resource string, e *registry.Entry, held map[string]bool) *resourcesv1.ListPluginsResponse_Plugin {
	p := &resourcesv1.ListPluginsResponse_Plugin{
		Resource: resource, Endpoint: e.Endpoint, Connected: e.Conn != nil, Problem: e.Problem,
	}
	if !e.Since.IsZero() {
		p.Since = timestamppb.New(e.Since)
	}
	for _, id := range sortedKeys(e.Devices) {
		p.Devices = append(p.Devices, &resourcesv1.Device{
			Id: id, Health: health(e, id), NumaNodes: e.Devices[id].NUMA,
		})
		if held[id] {
			p.InUse++
		}
	}
	return p
}

// health returns what a plugin says of a device. It says nothing of one that it does not list any more.
func health(e *registry.Entry, id string) resourcesv1.Health {
	if e == nil || e.Conn == nil || !e.Listed {
		return resourcesv1.Health_HEALTH_UNKNOWN
	}
	switch d, is := e.Devices[id]; {
	case !is:
		return resourcesv1.Health_HEALTH_UNKNOWN
	case d.Healthy:
		return resourcesv1.Health_HEALTH_HEALTHY
	}
	return resourcesv1.Health_HEALTH_UNHEALTHY
}

// Pod returns what a pod was granted, with the health of now; nil if it was granted nothing, or is gone. No one changes
// it.
func (m *Manager) Pod(uid types.UID) *resourcesv1.PodResources {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pod := m.ledger.Granted(uid); len(pod) > 0 && !m.left[uid] {
		return m.resources(pod)
	}
	return nil
}

// Pods returns what all pods were granted, but those that are gone.
func (m *Manager) Pods() map[types.UID]*resourcesv1.PodResources {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[types.UID]*resourcesv1.PodResources, len(m.ledger.Pods()))
	for uid, pod := range m.ledger.Pods() {
		if !m.left[uid] {
			all[uid] = m.resources(pod)
		}
	}
	return all
}

// resources describes what a pod was granted. Call with mu held.
func (m *Manager) resources(pod ledger.Pod) *resourcesv1.PodResources {
	described := &resourcesv1.PodResources{}
	for _, c := range pod {
		container := &resourcesv1.ContainerResources{Name: c.Name}
		answers := map[string]*pluginapi.ContainerAllocateResponse{}
		for _, name := range sortedKeys(c.Grants) {
			r := m.registry.Resource(name)
			g := c.Grants[name]
			answers[name] = g.Answer
			container.Prepare = container.Prepare || r.Prepares()
			devices := &resourcesv1.ContainerResources_Devices{Resource: name}
			for _, id := range sortedKeys(g.Devices) {
				devices.Devices = append(devices.Devices, &resourcesv1.Device{
					Id: id, Health: health(r.Primary(), id), NumaNodes: g.Devices[id],
				})
			}
			container.Devices = append(container.Devices, devices)
		}
		answer.Merge(container, answers)
		described.Containers = append(described.Containers, container)
	}
	return described
}

// conditions are the health of the devices that a pod has of a resource, and whether its plugin is to prepare them.
type conditions struct {
	health   map[string]resourcesv1.Health
	prepares bool
}

// healths returns the conditions of all pods that have devices of a resource. Call with mu held.
func (m *Manager) healths(resource string) map[types.UID]conditions {
	r := m.registry.Resource(resource)
	if r == nil {
		return nil
	}
	all := map[types.UID]conditions{}
	for uid, pod := range m.ledger.Pods() {
		for _, c := range pod {
			for id := range c.Grants[resource].Devices {
				if all[uid].health == nil {
					all[uid] = conditions{map[string]resourcesv1.Health{}, r.Prepares()}
				}
				all[uid].health[id] = health(r.Primary(), id)
			}
		}
	}
	return all
}

func equal(a, b conditions) bool { return a.prepares == b.prepares && maps.Equal(a.health, b.health) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// sorted returns both in order.
func sorted(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return all
}
