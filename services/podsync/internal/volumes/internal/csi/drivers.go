package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/microlet/microlet/services/internal/pluginsocket"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/pluginregistration"
)

// PluginType is what a driver calls itself when it registers.
const PluginType = "CSIPlugin"

// Node shows the cluster which drivers the node has.
type Node interface {
	// Registered takes what the driver says of the node. Its error refuses the driver.
	Registered(ctx context.Context, driver string, info *csi.NodeGetInfoResponse) error
	// Removed is called when the driver is gone.
	Removed(ctx context.Context, driver string)
}

// Drivers are those that are registered.
type Drivers struct {
	folder  pluginsocket.Folder
	node    Node
	seconds *prometheus.HistogramVec

	mu      sync.Mutex
	drivers map[string]registered
	// changed is closed, and replaced, when a driver is registered or gone.
	changed chan struct{}
}

var _ pluginregistration.Handler = (*Drivers)(nil)

// registered is a driver's socket.
type registered struct {
	endpoint string
	version  *utilversion.Version
}

// NewDrivers returns none. The sockets of those that come are below root, and no symbolic link leads to them. Metrics
// may be nil.
func NewDrivers(root string, node Node, metrics prometheus.Registerer) *Drivers {
	return &Drivers{
		folder: pluginsocket.Folder{Path: root}, node: node, seconds: newSeconds(metrics),
		drivers: map[string]registered{}, changed: make(chan struct{}),
	}
}

// Validate refuses a driver whose versions microlet does not speak, and one beside which another of the same name is
// registered that is not older. The errors are the kubelet's.
func (d *Drivers) Validate(_ context.Context, p pluginregistration.Plugin) error {
	_, err := d.version(p)
	return err
}

// version is the highest of the driver's that microlet speaks.
func (d *Drivers) version(p pluginregistration.Plugin) (*utilversion.Version, error) {
	if len(p.Versions) == 0 {
		return nil, fmt.Errorf("CSI driver %q returned an empty list for supported versions", p.Name)
	}
	highest, err := highestVersion(p.Versions)
	if err != nil {
		return nil, fmt.Errorf("none of the versions %q of CSI driver %q is supported: %w", p.Versions, p.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before, ok := d.drivers[p.Name]
	if ok && before.endpoint != p.Endpoint && !before.version.LessThan(highest) {
		return nil, fmt.Errorf("another driver with the name %q is already registered with a higher supported version: %q",
			p.Name, before.version)
	}
	return highest, nil
}

// highestVersion returns the highest version that is 1.x. Kubernetes has dropped 0.x in 1.17, and 2.x
// does not exist.
func highestVersion(versions []string) (*utilversion.Version, error) {
	var highest *utilversion.Version
	var errs []error
	for _, text := range versions {
		v, err := utilversion.ParseGeneric(text)
		switch {
		case err != nil:
			errs = append(errs, err)
		case v.Major() != 1:
			errs = append(errs, fmt.Errorf("version %s is not 1.x", text))
		case highest == nil || highest.LessThan(v):
			highest = v
		}
	}
	if highest == nil {
		return nil, errors.Join(errs...)
	}
	return highest, nil
}

// Register takes the driver, asks it for its name of the node, and passes the answer to the node.
func (d *Drivers) Register(ctx context.Context, p pluginregistration.Plugin) error {
	version, err := d.version(p)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.drivers[p.Name] = registered{p.Endpoint, version}
	d.mu.Unlock()
	if err := d.Refresh(ctx, p.Name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.change()
	return nil
}

// change wakes those that wait for Changed. The lock is held.
func (d *Drivers) change() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// Refresh asks a registered driver for its name of the node, and passes the answer to the node.
func (d *Drivers) Refresh(ctx context.Context, name string) error {
	driver, err := d.Driver(name)
	if err != nil {
		return err
	}
	info, err := driver.Info(ctx)
	if err != nil {
		return err
	}
	return d.node.Registered(ctx, name, info)
}

// Names are those of the registered drivers.
func (d *Drivers) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.drivers))
}

// Deregister takes the driver back, unless it is registered at another socket meanwhile.
func (d *Drivers) Deregister(ctx context.Context, p pluginregistration.Plugin) {
	d.mu.Lock()
	if d.drivers[p.Name].endpoint != p.Endpoint {
		d.mu.Unlock()
		return
	}
	delete(d.drivers, p.Name)
	d.change()
	d.mu.Unlock()
	d.node.Removed(ctx, p.Name)
}

// Changed is closed when the next driver is registered or gone.
func (d *Drivers) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// Driver returns the driver of a name. The error is the kubelet's.
func (d *Drivers) Driver(name string) (*Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, ok := d.drivers[name]
	if !ok {
		return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	return &Driver{name: name, endpoint: found.endpoint, folder: d.folder, seconds: d.seconds}, nil
}
