package node

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/pressure"
)

// Observed is what was seen of the node. What is nil or empty is unknown, and leaves what the Node says.
type Observed struct {
	Addresses             []v1.NodeAddress
	Capacity, Allocatable v1.ResourceList
	Machine               nodeinfo.Machine
	// Runtime is podsync's account of the container runtime.
	Runtime *podsyncv1.Runtime
	// Pressure is what evictor reports; nil when it has not for a while.
	Pressure []pressure.State
	// Volumes are those that podsync says are in use.
	Volumes *podsyncv1.Volumes
	// Images are those that imagegc lists.
	Images *imagegcv1.Images
	// Extended are the extended resources that resources reports.
	Extended *resourcesv1.NodeResources
	// CSI is what podsync reports of CSI drivers.
	CSI *podsyncv1.CSIDrivers
	// Problems are why the node is not ready, in the kubelet's words; none when it is.
	Problems []error
	// Warning is added to the message of a ready node.
	Warning string
}

// Event is a Kubernetes Event about the node.
type Event struct {
	Type, Reason, Message string
}

// Update returns a copy of the Node with its labels, annotations and status as observed, whether that differs
// from the Node in more than heartbeat times, and the Events to send once the change is accepted.
//
// Volumes in use stay as a kubelet or an earlier podsync has left them until podsync says what is in use: the volumes
// may still be mounted.
func (s Settings) Update(original *v1.Node, o Observed,
	now time.Time) (updated *v1.Node, changed bool, events []Event) {
	n := original.DeepCopy()
	s.setLabels(n)
	setCSI(n, o.CSI)
	s.setAddresses(n, o)
	setResources(n, o)
	if was, is := n.Status.NodeInfo.BootID, o.Machine.BootID; was != "" && is != "" && was != is {
		events = append(events, Event{v1.EventTypeWarning, "Rebooted",
			fmt.Sprintf("Node %s has been rebooted, boot id: %s", s.Name, is)})
	}
	s.setInfo(n, o)
	setRuntime(n, o.Runtime)
	s.setImages(n, o.Images)
	setVolumes(n, o.Volumes)
	n.Status.DaemonEndpoints = v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: s.KubeletPort}}
	n.Status.DeclaredFeatures = s.DeclaredFeatures
	events = append(events, s.setPressure(n, o.Pressure, now)...)
	events = append(events, s.setReady(n, o, now)...) // last: old control planes want it so
	return n, Differs(original, n), events
}

// setVolumes takes over the list of podsync. Without one, the Node keeps what it says.
func setVolumes(n *v1.Node, list *podsyncv1.Volumes) {
	if list == nil {
		return
	}
	n.Status.VolumesInUse = nil
	for _, name := range list.GetInUse() {
		n.Status.VolumesInUse = append(n.Status.VolumesInUse, v1.UniqueVolumeName(name))
	}
}

func (s Settings) setLabels(n *v1.Node) {
	for label, value := range map[string]string{v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH} {
		if n.Labels[label] != value {
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels[label] = value
		}
	}
}

func (s Settings) setAddresses(n *v1.Node, o Observed) {
	if s.ExternalCloud && len(s.NodeIPs) > 0 && specified(s.NodeIPs[0]) {
		var ips []string
		for _, ip := range s.NodeIPs {
			if specified(ip) {
				ips = append(ips, ip.Unmap().String())
			}
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[annotationProvidedIP] = strings.Join(ips, ",")
	} else {
		delete(n.Annotations, annotationProvidedIP)
	}
	if s.ExternalCloud && len(n.Status.Addresses) > 0 {
		return // the provider's say
	}
	if len(o.Addresses) > 0 {
		n.Status.Addresses = slices.Clone(o.Addresses)
	}
}

// setResources takes over what is known, and leaves other resources, such as an operator's, as they are. Those of
// device plugins stay as well while resources reports nothing.
func setResources(n *v1.Node, o Observed) {
	for name, q := range o.Capacity {
		setQuantity(&n.Status.Capacity, name, q.DeepCopy())
	}
	for name, q := range o.Allocatable {
		setQuantity(&n.Status.Allocatable, name, q.DeepCopy())
	}
	for name := range n.Status.Allocatable {
		if _, has := n.Status.Capacity[name]; !has && podutil.IsExtended(name) {
			delete(n.Status.Allocatable, name)
		}
	}
	for name, q := range n.Status.Capacity {
		if _, own := o.Capacity[name]; !own && podutil.IsExtended(name) {
			setQuantity(&n.Status.Allocatable, name, q.DeepCopy())
		}
	}
	setExtended(n, o.Extended)
}

// setExtended takes over the resources of device plugins. What has another resource's name is not theirs.
func setExtended(n *v1.Node, m *resourcesv1.NodeResources) {
	for _, r := range m.GetResources() {
		name := v1.ResourceName(r.GetName())
		if !podutil.IsExtended(name) {
			continue
		}
		capacity := max(r.GetCapacity(), 0)
		allocatable := min(max(r.GetAllocatable(), 0), capacity)
		setQuantity(&n.Status.Capacity, name, *resource.NewQuantity(capacity, resource.DecimalSI))
		setQuantity(&n.Status.Allocatable, name, *resource.NewQuantity(allocatable, resource.DecimalSI))
	}
}

func (s Settings) setInfo(n *v1.Node, o Observed) {
	set := func(to *string, value string) {
		if value != "" {
			*to = value
		}
	}
	info := &n.Status.NodeInfo
	set(&info.MachineID, o.Machine.MachineID)
	set(&info.SystemUUID, o.Machine.SystemUUID)
	set(&info.BootID, o.Machine.BootID)
	set(&info.KernelVersion, o.Machine.Kernel)
	set(&info.OSImage, o.Machine.OSImage)
	info.OperatingSystem, info.Architecture = runtime.GOOS, runtime.GOARCH
	info.KubeletVersion = s.version()
	info.KubeProxyVersion = "" //nolint:staticcheck // deprecated, and cleared as by the kubelet
	info.RunningInUserNamespace = nil
	if s.UserNamespace {
		in := o.Machine.UserNamespace
		info.RunningInUserNamespace = &in
	}
	if o.Machine.SwapBytes > 0 {
		swap := o.Machine.SwapBytes
		info.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
}

func setRuntime(n *v1.Node, r *podsyncv1.Runtime) {
	if r.GetName() == "" {
		return
	}
	version := r.GetVersion()
	if version == "" {
		version = "Unknown"
	}
	n.Status.NodeInfo.ContainerRuntimeVersion = r.GetName() + "://" + version
	handlers := slices.SortedFunc(slices.Values(r.GetHandlers()), func(a, b *podsyncv1.Runtime_Handler) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	n.Status.RuntimeHandlers = nil
	for _, h := range handlers {
		readOnly, userNamespaces := h.GetRecursiveReadOnlyMounts(), h.GetUserNamespaces()
		n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, v1.NodeRuntimeHandler{
			Name: h.GetName(),
			Features: &v1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: &readOnly,
				UserNamespaces:          &userNamespaces,
			},
		})
	}
	policy := r.GetSupplementalGroupsPolicy()
	n.Status.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &policy}
}

// Differs compares all of two Nodes that a status update writes, but heartbeat times.
func Differs(a, b *v1.Node) bool {
	if !equality.Semantic.DeepEqual(a.Labels, b.Labels) || !equality.Semantic.DeepEqual(a.Annotations, b.Annotations) {
		return true
	}
	x, y := a.Status.DeepCopy(), b.Status.DeepCopy()
	for _, s := range []*v1.NodeStatus{x, y} {
		slices.SortFunc(s.Conditions, func(a, b v1.NodeCondition) int {
			return strings.Compare(string(a.Type), string(b.Type))
		})
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime.Reset()
		}
	}
	return !equality.Semantic.DeepEqual(x, y)
}

// missingCapacity names the resources without which nothing can be scheduled.
func (s Settings) missingCapacity(n *v1.Node) error {
	var missing []string
	required := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods}
	if s.LocalStorageCapacityIsolation {
		required = append(required, v1.ResourceEphemeralStorage)
	}
	for _, name := range required {
		if _, has := n.Status.Capacity[name]; !has {
			missing = append(missing, string(name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("missing node capacity for resources: %s", strings.Join(missing, ", "))
}
