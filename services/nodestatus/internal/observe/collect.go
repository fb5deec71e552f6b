package observe

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/pressure"
	"github.com/microlet/microlet/services/nodestatus/internal/node"
)

const (
	// lookupTimeout bounds the search for the node's addresses: a name server may be away.
	lookupTimeout = 2 * time.Second
	// firstLookupTimeout is for the first search. It is time enough for a second name server, which is asked after 5 s.
	firstLookupTimeout = 12 * time.Second
)

// Collector gathers what a node's status is made of.
type Collector struct {
	Settings node.Settings
	Network  node.Network
	Source   nodeinfo.Source
	// Limits and Reservation are for the capacity that is read here while podsync has reported none.
	Limits      nodeinfo.Options
	Reservation nodeinfo.Reservation
	// Capacity and Runtime return what podsync has put, nil when it has not.
	Capacity func() *podsyncv1.Capacity
	Runtime  func() *podsyncv1.Runtime
	// Volumes returns what podsync says of volumes; see NodeVolumes.
	Volumes func(ctx context.Context) VolumeEntries
	// Images returns what imagegc lists, nil while it has not.
	Images func() *imagegcv1.Images
	// Extended returns the extended resources that resources reports, nil while it has not.
	Extended func() *resourcesv1.NodeResources
	// Pressure returns what evictor reports, nil when it does not.
	Pressure func() []pressure.State
	Ready    *Ready
	// ShuttingDown reports whether the machine shuts down; nil for a node that gives pods no time then.
	ShuttingDown func() bool
	// Found is called with the addresses whenever they were looked for and found.
	Found func([]v1.NodeAddress)
	Log   *slog.Logger

	mu        sync.Mutex
	addresses []v1.NodeAddress
	machine   nodeinfo.Machine
	logged    map[string]string // what of it failed, so that each failure is logged once
}

// Observe returns what is seen of the node. What takes time, the addresses and the machine, is
// looked at again only if fresh is set; until it is found again, what was found before counts.
func (c *Collector) Observe(ctx context.Context, fresh bool) node.Observed {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fresh || c.machine == (nodeinfo.Machine{}) {
		c.refresh(ctx)
	}
	volumes := c.Volumes(ctx)
	o := node.Observed{
		Addresses: slices.Clone(c.addresses), Machine: c.machine, Runtime: c.Runtime(),
		Images: c.Images(), Volumes: volumes.Volumes, CSI: volumes.CSIDrivers, Extended: c.Extended(),
		Pressure: c.Pressure(), Problems: c.problems(),
		Warning: c.Ready.Warning(),
	}
	capacity := c.Capacity()
	if capacity.GetSystemUuid() != "" {
		o.Machine.SystemUUID = capacity.GetSystemUuid()
	}
	var err error
	if capacity != nil {
		o.Capacity, o.Allocatable, err = nodeinfo.FromMessage(capacity)
		c.logOnce("podsync's capacity cannot be read", err)
	}
	if capacity == nil || err != nil {
		o.Capacity, o.Allocatable = c.ownCapacity()
	}
	return o
}

// errShuttingDown has the kubelet's text.
var errShuttingDown = errors.New("node is shutting down")

// problems are why the node is not ready; none when it is.
func (c *Collector) problems() []error {
	problems := c.Ready.Problems()
	if c.ShuttingDown != nil && c.ShuttingDown() {
		problems = append(problems, errShuttingDown)
	}
	return problems
}

func (c *Collector) refresh(ctx context.Context) {
	timeout := lookupTimeout
	if len(c.addresses) == 0 {
		timeout = firstLookupTimeout
	}
	lookup, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addresses, err := c.Settings.Addresses(lookup, c.Network)
	if errors.Is(err, node.ErrNameServer) && len(c.addresses) == 0 && ctx.Err() == nil {
		addresses, err = c.Settings.Addresses(ctx, nameless{c.Network}) // a node must have one
	}
	c.logOnce("the node's addresses cannot be found", err)
	if err == nil {
		c.addresses = addresses
		c.Found(slices.Clone(addresses))
	}
	machine, err := c.Source.Machine()
	c.logOnce("the machine's identity cannot be read in full", err)
	c.machine = machine
}

// nameless is a network without name servers.
type nameless struct{ node.Network }

func (nameless) Lookup(context.Context, string) ([]netip.Addr, error) { return nil, node.ErrNameServer }

func (c *Collector) ownCapacity() (capacity, allocatable v1.ResourceList) {
	capacity, err := c.Source.Capacity(c.Limits)
	c.logOnce("the node's capacity cannot be read in full", err)
	allocatable, err = nodeinfo.Allocatable(capacity, c.Reservation)
	c.logOnce("what of the node is allocatable cannot be computed", err)
	return capacity, allocatable
}

// logOnce logs a failure when it begins or changes.
func (c *Collector) logOnce(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if c.logged == nil {
		c.logged = map[string]string{}
	}
	if c.logged[what] != text {
		c.logged[what] = text
		if err != nil {
			c.Log.Warn(what, logkey.Err, err)
		}
	}
}
