package csinode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// annotationNodeID says on the Node what each driver calls it, in JSON.
	annotationNodeID = "csi.volume.kubernetes.io/nodeid"
	// shown is how long the Node may take to show what a driver says of it.
	shown = 10 * time.Second
	// annotationMigrated says on the CSINode which kinds of volumes CSI drivers have taken over.
	annotationMigrated = "storage.alpha.kubernetes.io/migrated-plugins"
	// timeout bounds one question to the API server.
	timeout = 10 * time.Second
)

// migrated are the kinds of volumes that CSI drivers have taken over. The scheduler counts them with the drivers'.
var migrated = strings.Join([]string{
	"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder",
	"kubernetes.io/gce-pd", "kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume",
}, ",")

// Object is the Node as the API server has it; see package node.
type Object interface {
	Node() *v1.Node
	// Until waits until the Node is as wanted, or ctx ends.
	Until(ctx context.Context, wanted func(*v1.Node) bool) error
}

// Options of a Node.
type Options struct {
	// Client is nil on a node without an API server, which then shows its drivers nowhere.
	Client kubernetes.Interface
	// Name is the Node's.
	Name   string
	Object Object
	// Publish gives nodestatus what drivers say of the node. nodestatus alone writes the Node.
	Publish func(*podsyncv1.CSIDrivers)
	Log     *slog.Logger
}

// Node shows the cluster one node's drivers.
type Node struct {
	o Options

	mu sync.Mutex
	// drivers are those that have registered with this process, removed ones too.
	drivers map[string]*podsyncv1.CSIDrivers_Driver
}

// New returns a Node; Run makes its CSINode.
func New(o Options) *Node {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Node{o: o, drivers: map[string]*podsyncv1.CSIDrivers_Driver{}}
}

// backoff is the delay between two attempts to write an object that others write too.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: 10 * time.Millisecond, Factor: 5, Jitter: 0.1, Steps: 4}
}

// Run makes the CSINode, also of a node that no driver ever registers on, and returns: the scheduler waits for it.
func (n *Node) Run(ctx context.Context) error {
	if n.o.Client == nil {
		return nil
	}
	delay := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 32, Cap: time.Minute}
	for {
		err := n.change(ctx, func(*storagev1.CSINode) {})
		if err == nil || ctx.Err() != nil {
			return nil
		}
		after := delay.Step()
		n.o.Log.Warn("CSINode is not written", logkey.Err, err, logkey.Delay, after)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(after):
		}
	}
}

// Registered shows a driver, and what it says of the node.
func (n *Node) Registered(ctx context.Context, driver string, info *csi.NodeGetInfoResponse) error {
	if err := check(driver, info); err != nil {
		return fmt.Errorf("error adding CSI driver node info: %w", err)
	}
	if n.o.Client == nil {
		return nil
	}
	topology := info.GetAccessibleTopology().GetSegments()
	said := &podsyncv1.CSIDrivers_Driver{Name: driver, NodeId: info.GetNodeId(), Topology: topology}
	if err := n.show(ctx, said); err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	entry := storagev1.CSINodeDriver{
		Name: driver, NodeID: info.GetNodeId(), TopologyKeys: slices.Sorted(maps.Keys(topology)),
		Allocatable: n.allocatable(driver, info.GetMaxVolumesPerNode()),
	}
	err := n.change(ctx, func(c *storagev1.CSINode) {
		c.Spec.Drivers = append(without(c.Spec.Drivers, driver), entry)
	})
	if err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	return nil
}

// Removed takes out a driver that is gone. If that fails, the entry stays until a driver of its name registers.
func (n *Node) Removed(ctx context.Context, driver string) {
	if n.o.Client == nil {
		return
	}
	err := n.change(ctx, func(c *storagev1.CSINode) { c.Spec.Drivers = without(c.Spec.Drivers, driver) })
	if err != nil {
		n.o.Log.Warn("a CSI driver that is gone stays in CSINode", "driver", driver, logkey.Err, err)
	}
	n.publish(&podsyncv1.CSIDrivers_Driver{Name: driver})
}

// show has the Node say what the driver does, and waits until it does: the scheduler reads both the Node and the
// CSINode.
func (n *Node) show(ctx context.Context, d *podsyncv1.CSIDrivers_Driver) error {
	if err := contradicts(n.o.Object.Node(), d); err != nil {
		return err
	}
	n.publish(d)
	ctx, cancel := context.WithTimeout(ctx, shown)
	defer cancel()
	if err := n.o.Object.Until(ctx, func(node *v1.Node) bool { return shows(node, d) }); err != nil {
		return fmt.Errorf("nodestatus has not written it: %w", err)
	}
	return nil
}

func (n *Node) publish(d *podsyncv1.CSIDrivers_Driver) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drivers[d.GetName()] = d
	all := &podsyncv1.CSIDrivers{}
	for _, name := range slices.Sorted(maps.Keys(n.drivers)) {
		all.Drivers = append(all.Drivers, n.drivers[name])
	}
	n.o.Publish(all)
}

// contradicts is an error if the driver and a label disagree about where the node is.
func contradicts(node *v1.Node, d *podsyncv1.CSIDrivers_Driver) error {
	for _, key := range slices.Sorted(maps.Keys(d.GetTopology())) {
		if is, ok := node.Labels[key]; ok && is != d.GetTopology()[key] {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key,
				d.GetTopology()[key], key, is)
		}
	}
	return nil
}

// shows reports whether the Node says what the driver does.
func shows(node *v1.Node, d *podsyncv1.CSIDrivers_Driver) bool {
	var ids map[string]string
	if json.Unmarshal([]byte(node.Annotations[annotationNodeID]), &ids) != nil || ids[d.GetName()] != d.GetNodeId() {
		return false
	}
	for key, value := range d.GetTopology() {
		if is, ok := node.Labels[key]; !ok || is != value {
			return false
		}
	}
	return true
}

// allocatable is how many volumes a driver takes; 0 says nothing.
func (n *Node) allocatable(driver string, most int64) *storagev1.VolumeNodeResources {
	if most < 0 {
		n.o.Log.Warn("CSI driver reports a negative number of volumes, which is ignored", "driver", driver, "most", most)
	}
	if most <= 0 {
		return nil
	}
	return &storagev1.VolumeNodeResources{Count: new(int32(min(most, math.MaxInt32)))}
}

func without(drivers []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(drivers), func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// change changes the CSINode, which it makes if there is none.
func (n *Node) change(ctx context.Context, edit func(*storagev1.CSINode)) error {
	return n.retried(ctx, func(ctx context.Context) error {
		nodes := n.o.Client.StorageV1().CSINodes()
		found, err := nodes.Get(ctx, n.o.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			if found, err = n.empty(ctx); err == nil {
				found, err = nodes.Create(ctx, found, metav1.CreateOptions{})
			}
		}
		if err != nil {
			return err
		}
		next := found.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationMigrated, migrated)
		edit(next)
		if same(found, next) {
			return nil
		}
		_, err = nodes.Update(ctx, next, metav1.UpdateOptions{})
		return err
	})
}

// same compares without the order of the drivers.
func same(a, b *storagev1.CSINode) bool {
	text := func(c *storagev1.CSINode) string {
		drivers := slices.SortedFunc(slices.Values(c.Spec.Drivers), func(a, b storagev1.CSINodeDriver) int {
			return cmp.Compare(a.Name, b.Name)
		})
		data, err := json.Marshal(drivers)
		return fmt.Sprint(string(data), err, c.Annotations[annotationMigrated])
	}
	return text(a) == text(b)
}

// empty is the CSINode of a node without drivers. It goes with its Node.
func (n *Node) empty(ctx context.Context) (*storagev1.CSINode, error) {
	node, err := n.o.Client.CoreV1().Nodes().Get(ctx, n.o.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name:            n.o.Name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.o.Name, UID: node.UID}},
	}}
	c.Spec.Drivers = []storagev1.CSINodeDriver{}
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationMigrated, migrated)
	return c, nil
}

// retried tries until it succeeds, a few times.
func (n *Node) retried(ctx context.Context, try func(ctx context.Context) error) error {
	delay := backoff()
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return try(ctx)
		}()
		if err == nil || delay.Steps <= 1 {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(delay.Step()):
		}
	}
}
