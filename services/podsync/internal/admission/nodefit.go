package admission

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/admission/internal/preemption"
)

// NodeFit rejects what the scheduler would not have put here: a pod that names the node
// itself, or one for which the node has changed since. A critical pod that lacks nothing but resources is admitted at
// the cost of others.
type NodeFit struct{}

// Admit implements Handler. The order of the checks is the kubelet's, because the first
// that fails is what the pod shows.
func (NodeFit) Admit(_ context.Context, a *Attributes) Result {
	a = withOS(a)
	if v := systemFits(a.Pod, a.Node); !v.Admitted() {
		return v
	}
	lacking := lacks(a)
	others := mismatches(a)
	switch {
	case len(lacking) == 0 && len(others) == 0:
		return Result{}
	case podutil.IsCritical(a.Pod) && len(others) == 0:
		return preempt(a, lacking)
	case podutil.IsCritical(a.Pod) || len(lacking) == 0:
		first := others[0]
		return Result{
			Reason: first.name, Message: fmt.Sprintf("Predicate %s failed: %s", first.name, first.why),
			NodeMayBeOld: len(others) == 1 && first.name == nodeAffinity,
			Resources:    first.name == nodePorts,
		}
	}
	short := lacking[0]
	message := fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		short.name, short.requested, short.used, short.capacity)
	if a.Resizes() {
		message += holders(a, short.name)
	}
	return Result{Reason: "OutOf" + string(short.name), Resources: true, Message: message}
}

// withOS is a with the label of the node's OS as it is, whatever the API has.
func withOS(a *Attributes) *Attributes {
	if a.Node.Labels[v1.LabelOSStable] == runtime.GOOS {
		return a
	}
	changed := *a
	changed.Node = a.Node.DeepCopy()
	metav1.SetMetaDataLabel(&changed.Node.ObjectMeta, v1.LabelOSStable, runtime.GOOS)
	return &changed
}

// systemFits checks what no preemption could help with, and says so before any.
func systemFits(p *v1.Pod, node *v1.Node) Result {
	if want, ok := p.Labels[v1.LabelOSStable]; ok && want != runtime.GOOS {
		return Result{
			Reason:  "PodOSSelectorNodeLabelDoesNotMatch",
			Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		}
	}
	if p.Spec.OS != nil && string(p.Spec.OS.Name) != runtime.GOOS {
		return Result{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	sc := p.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil ||
		*sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict {
		return Result{}
	}
	if f := node.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
		return Result{
			Reason:  "SupplementalGroupsPolicyNotSupported",
			Message: "SupplementalGroupsPolicy=Strict is not supported in this node",
		}
	}
	return Result{}
}

// shortage is a resource of which the node has not enough left, in the units of the
// kubelet's messages: thousandths of a CPU, else whole units.
type shortage struct {
	name                      v1.ResourceName
	requested, used, capacity int64
}

// lacks lists the resources that the pod would overbook.
func lacks(a *Attributes) []shortage {
	var short []shortage
	allocatable := a.Node.Status.Allocatable
	if pods, allowed := int64(len(a.Others)), allocatable.Pods().Value(); pods+1 > allowed && !a.Resizes() {
		short = append(short, shortage{v1.ResourcePods, 1, pods, allowed})
	}
	requests := resourcehelper.PodRequests(a.Pod, resourcehelper.PodResourcesOptions{})
	used := a.used
	if used == nil {
		used = map[v1.ResourceName]int64{}
		for i := range a.Others {
			addRequests(used, a.requestsOf(i))
		}
	}
	var granted v1.ResourceList
	if a.Resizes() {
		granted = resourcehelper.PodRequests(a.Granted, resourcehelper.PodResourcesOptions{})
	}
	for _, name := range countedResources(requests) {
		amount, known := allocatable[name]
		if known && a.devices.hasOut(name, amount) {
			continue
		}
		if !known && podutil.IsExtended(name) {
			// It belongs to the cluster, or to a device claim, and not to the node. The kubelet counts the overhead even so.
			requests[name] = a.Pod.Spec.Overhead[name]
		}
		requested, capacity := podutil.Amount(name, requests[name]), podutil.Amount(name, amount)
		// A node that has become smaller than what it granted still takes back.
		if has, ok := granted[name]; ok && requested <= podutil.Amount(name, has) {
			continue
		}
		if requested > 0 && requested > capacity-used[name] {
			short = append(short, shortage{name, requested, used[name], capacity})
		}
	}
	return short
}

// requestsOf are the requests of one of the others.
func (a *Attributes) requestsOf(i int) v1.ResourceList {
	if a.requests != nil {
		return a.requests[i]
	}
	return resourcehelper.PodRequests(a.Others[i], resourcehelper.PodResourcesOptions{})
}

// addRequests adds the requests of a pod to those of others.
func addRequests(used map[v1.ResourceName]int64, requests v1.ResourceList) {
	for name, amount := range requests {
		used[name] = podutil.AddAmounts(used[name], podutil.Amount(name, amount))
	}
}

// countedResources are the names of a list that a node counts, the well-known ones first.
func countedResources(list v1.ResourceList) []v1.ResourceName {
	known := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	names := slices.Clone(known)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		scalar := podutil.IsExtended(name) || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) ||
			strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix) ||
			strings.HasPrefix(string(name), v1.ResourceAttachableVolumesPrefix)
		if scalar && !slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	return names
}

// Names and texts of the scheduler's plugins, which the kubelet's messages carry.
const (
	nodeAffinity    = "NodeAffinity"
	nodeName        = "NodeName"
	nodePorts       = "NodePorts"
	taintToleration = "TaintToleration"
)

type mismatch struct{ name, why string }

// mismatches lists what else keeps the pod off this node.
func mismatches(a *Attributes) []mismatch {
	var found []mismatch
	// An affinity that does not parse matches no node.
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(a.Pod).Match(a.Node); !ok || err != nil {
		found = append(found, mismatch{nodeAffinity, "node(s) didn't match Pod's node affinity/selector"})
	}
	if a.Pod.Spec.NodeName != "" && a.Pod.Spec.NodeName != a.Node.Name {
		found = append(found, mismatch{nodeName, "node(s) didn't match the requested node name"})
	}
	if portsClash(a.Pod, a.Others) {
		found = append(found, mismatch{nodePorts, "node(s) didn't have free ports for the requested pod ports"})
	}
	if !podutil.IsStatic(a.Pod) && !toleratesNoExecute(a.Pod, a.Node.Spec.Taints) {
		found = append(found, mismatch{taintToleration, "node(s) had taints that the pod didn't tolerate"})
	}
	return found
}

// toleratesNoExecute looks at the one effect that is for pods that run already, and so
// for those that are about to.
func toleratesNoExecute(p *v1.Pod, taints []v1.Taint) bool {
	const comparisonOperators = false // the feature gate of that name, which is off by default
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taints, p.Spec.Tolerations,
		func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }, comparisonOperators)
	return !untolerated
}

// hostPort is a port of the machine. The empty address stands for all of them.
type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

func (h hostPort) clashes(other hostPort) bool {
	return h.port == other.port && h.protocol == other.protocol && (h.ip == "" || other.ip == "" || h.ip == other.ip)
}

func portsClash(p *v1.Pod, others []*v1.Pod) bool {
	want := hostPorts(p)
	if len(want) == 0 {
		return false
	}
	for _, other := range others {
		for _, taken := range hostPorts(other) {
			if slices.ContainsFunc(want, taken.clashes) {
				return true
			}
		}
	}
	return false
}

// hostPorts are those of the containers that run as long as the pod does.
func hostPorts(p *v1.Pod) []hostPort {
	var ports []hostPort
	for c := range podutil.LongRunning(&p.Spec) {
		for _, port := range c.Ports {
			if port.HostPort <= 0 {
				continue
			}
			h := hostPort{port.HostIP, port.Protocol, port.HostPort}
			if h.ip == "0.0.0.0" {
				h.ip = ""
			}
			if h.protocol == "" {
				h.protocol = v1.ProtocolTCP
			}
			ports = append(ports, h)
		}
	}
	return ports
}

// preempt admits a critical pod and names those who must go for it.
func preempt(a *Attributes, lacking []shortage) Result {
	needs := make([]preemption.Need, len(lacking))
	for i, s := range lacking {
		needs[i] = preemption.Need{Resource: s.name, Amount: podutil.AddAmounts(s.requested, s.used) - s.capacity}
	}
	victims, err := preemption.Victims(a.Pod, a.Others, needs)
	if err != nil {
		return Result{
			Reason: "UnexpectedAdmissionError", Resources: true,
			Message: fmt.Sprintf("Unexpected error while attempting to recover from admission failure: %v", err),
		}
	}
	return Result{Preempt: &Preemption{Victims: victims, Signal: lacking[0].name}}
}
