package grants

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/podutil"
)

// Lacks reports whether a container has to be asked for before it starts: it is not known what was granted to it. That
// is so after a restart of podsync, and for a resource of which the plugin has come since.
func (g *Grants) Lacks(p *v1.Pod, c *v1.Container) bool {
	names := g.ofContainer(c)
	if len(names) == 0 {
		return false
	}
	granted, known := g.answer(p.UID)
	if !known {
		return true
	}
	extended, _ := g.Extended()
	has := of(granted, c.Name)
	for _, name := range names {
		if _, offered := extended[name]; offered && devices(has, name) == nil {
			return true
		}
	}
	return false
}

// Container returns what a container was granted, after its devices have been prepared; nil for nothing. It is an error
// if that is of a resource that the container does not ask for.
func (g *Grants) Container(ctx context.Context, p *v1.Pod, c *v1.Container) (*resourcesv1.ContainerResources, error) {
	asked := podutil.Extended(c)
	if len(asked) == 0 {
		return nil, nil
	}
	granted, _ := g.answer(p.UID)
	r := of(granted, c.Name)
	if r == nil {
		return nil, nil
	}
	if err := check(r, asked); err != nil {
		return nil, err
	}
	if r.GetPrepare() {
		if err := g.prepare(ctx, p.UID, c.Name); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// check refuses a grant of what its container did not ask for.
func check(r *resourcesv1.ContainerResources, asked []v1.ResourceName) error {
	if len(r.GetDevices()) == 0 {
		return errors.New("the service resources granted a configuration without a device: see its log")
	}
	wants := map[string]bool{}
	for _, name := range asked {
		wants[string(name)] = true
	}
	for _, d := range r.GetDevices() {
		if !wants[d.GetResource()] {
			return fmt.Errorf("the service resources granted %q, which is not in resources.limits of the container: see its log",
				short(d.GetResource()))
		}
	}
	return nil
}

// of returns what a container was granted, nil for nothing.
func of(granted *resourcesv1.PodResources, container string) *resourcesv1.ContainerResources {
	for _, c := range granted.GetContainers() {
		if c.GetName() == container {
			return c
		}
	}
	return nil
}

// devices are those of one resource, nil for none.
func devices(r *resourcesv1.ContainerResources, name v1.ResourceName) *resourcesv1.ContainerResources_Devices {
	for _, d := range r.GetDevices() {
		if d.GetResource() == string(name) {
			return d
		}
	}
	return nil
}

var health = map[resourcesv1.Health]v1.ResourceHealthStatus{
	resourcesv1.Health_HEALTH_HEALTHY:   v1.ResourceHealthStatusHealthy,
	resourcesv1.Health_HEALTH_UNHEALTHY: v1.ResourceHealthStatusUnhealthy,
}

// Statuses returns what the status of each container says of its devices (KEP-4680), by the container's name. known is
// false while it is not known what the pod was granted.
func (g *Grants) Statuses(uid types.UID) (statuses map[string][]v1.ResourceStatus, known bool) {
	granted, known := g.answer(uid)
	if newest, ok := g.pods.Get(subject.PodKey(string(uid))); ok {
		granted, known = newest, true // answers have the health of their moment
	}
	statuses = map[string][]v1.ResourceStatus{}
	for _, c := range granted.GetContainers() {
		for _, d := range c.GetDevices() {
			s := v1.ResourceStatus{Name: v1.ResourceName(d.GetResource())}
			seen := map[string]bool{} // the API server refuses a status with one twice
			for _, one := range d.GetDevices() {
				if seen[one.GetId()] {
					continue
				}
				seen[one.GetId()] = true
				h, ok := health[one.GetHealth()]
				if !ok {
					h = v1.ResourceHealthStatusUnknown
				}
				s.Resources = append(s.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(one.GetId()), Health: h})
			}
			statuses[c.GetName()] = append(statuses[c.GetName()], s)
		}
	}
	return statuses, known
}
