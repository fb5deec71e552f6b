package status

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	netutils "k8s.io/utils/net"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// Waiting is why a container could not be started.
type Waiting struct{ Reason, Message string }

// Override is a decision on the pod as a whole, such as an eviction or a missed deadline.
type Override struct {
	// Phase that it brings; empty stands for Failed.
	Phase           v1.PodPhase
	Reason, Message string
	// Yields: if all containers that are stopped succeed, so does the pod. That holds for the kubelet's evictions, and not
	// for its deadlines.
	Yields bool
	// Condition that comes with it (DisruptionTarget); nil for none.
	Condition *v1.PodCondition
}

// Inputs is what a status rests on beside the pod and its state.
type Inputs struct {
	// Old is the status that was generated last; nil stands for the API's, which the pod carries.
	Old *v1.PodStatus
	Now time.Time
	// Terminal: every container has been stopped and none will start again.
	Terminal bool
	// Waiting is why containers that should run could not be started, by container name.
	Waiting map[string]Waiting
	// Override is nil unless the node ended the pod.
	Override *Override
	// HostIPs are the node's addresses, primary first; empty when not known, which leaves the old ones.
	HostIPs []string
	// Readiness and Startup hold probe results by container id; an id that is not in them is unknown.
	Readiness, Startup map[string]decide.Result
	// RuntimeName is the scheme of container ids; empty stands for containerd.
	RuntimeName string
	// StopSignals is the feature gate ContainerStopSignals.
	StopSignals bool
	// RecursiveReadOnly: the pod's runtime handler can mount recursively read-only (KEP-3857).
	RecursiveReadOnly bool
	// Actuated are the resources that the pod was given last, with the limits of the pod as a whole where a container has
	// none; nil if that is not known. The pod of a status has those that are granted (KEP-1287).
	Actuated *pod.Resources
	// Devices are those of each container, by its name; nil if they are not known, and the last ones stay (KEP-4680).
	Devices map[string][]v1.ResourceStatus
	// Resize are the conditions that say how a resize of the pod fares.
	Resize []v1.PodCondition
	// WithoutPodResources: the feature gate InPlacePodLevelResourcesVerticalScaling is off, and the status has no
	// resources of the pod as a whole.
	WithoutPodResources bool
	// QOS is the pod's class; empty stands for the one that the API gave it, or else the one that its resources make.
	QOS v1.PodQOSClass
}

// generator holds what the parts of one status share.
type generator struct {
	pod *v1.Pod
	st  *pod.State // nil when unknown
	in  Inputs
	old *v1.PodStatus
	// restartingAll: every container restarts.
	restartingAll bool
}

func newGenerator(p *v1.Pod, st *pod.State, in Inputs) *generator {
	g := &generator{pod: p, st: st, in: in, old: in.Old}
	if g.old == nil {
		g.old = &p.Status
	}
	if st != nil {
		g.restartingAll = decide.RestartingAll(p, st, g.old)
	}
	if g.in.RuntimeName == "" {
		g.in.RuntimeName = "containerd"
	}
	return g
}

// Generate makes the status of a pod. A nil state stands for one that could not be read.
func Generate(p *v1.Pod, st *pod.State, in Inputs) v1.PodStatus {
	g := newGenerator(p, st, in)
	s := g.base()
	look := g
	if st == nil {
		s.ContainerStatuses = deepCopyStatuses(g.old.ContainerStatuses)
		s.InitContainerStatuses = deepCopyStatuses(g.old.InitContainerStatuses)
		s.EphemeralContainerStatuses = deepCopyStatuses(g.old.EphemeralContainerStatuses)
		look = &generator{pod: p, st: &pod.State{}, in: g.in, old: g.old} // what was never reported has not been made
	}
	if s.ContainerStatuses == nil {
		s.ContainerStatuses = look.containers(p.Spec.Containers, g.old.ContainerStatuses, false)
	}
	if s.InitContainerStatuses == nil {
		s.InitContainerStatuses = look.containers(p.Spec.InitContainers, g.old.InitContainerStatuses, true)
	}
	if s.EphemeralContainerStatuses == nil {
		s.EphemeralContainerStatuses = look.ephemerals()
	}
	g.probes(&s)

	s.Phase = g.phase(slices.Concat(s.ContainerStatuses, s.InitContainerStatuses))
	g.finish(&s)
	return s
}

// Rejected is the status of a pod that admission refused: none of its containers was ever
// made. As with the kubelet it shows nothing else, no condition of ours either.
func Rejected(p *v1.Pod, reason, message string, in Inputs) v1.PodStatus {
	g := newGenerator(p, &pod.State{}, in)
	s := g.base()
	s.Phase, s.Reason, s.Message = v1.PodFailed, reason, "Pod was rejected: "+message
	s.HostIP, s.HostIPs, s.PodIP, s.PodIPs = "", nil, "", nil
	s.AllocatedResources, s.Resources = nil, nil
	for _, c := range p.Status.Conditions {
		if !IsOwnedCondition(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	return s
}

// base holds what does not depend on containers.
func (g *generator) base() v1.PodStatus {
	s := v1.PodStatus{
		ObservedGeneration: max(g.pod.Generation, g.old.ObservedGeneration),
		QOSClass:           g.qos(),
		StartTime:          g.old.StartTime.DeepCopy(),
		VolumeHealth:       slices.Clone(g.old.VolumeHealth),
		// These are others' to write.
		ResourceClaimStatuses:                g.pod.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          g.pod.Status.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: g.pod.Status.NodeAllocatableResourceClaimStatuses,
		NominatedNodeName:                    g.pod.Status.NominatedNodeName,
	}
	if s.StartTime.IsZero() {
		s.StartTime = &metav1.Time{Time: g.in.Now}
	}
	if !g.in.WithoutPodResources {
		s.AllocatedResources = resourcehelper.PodRequests(g.pod, resourcehelper.PodResourcesOptions{})
		s.Resources = g.podResources()
	}
	g.addresses(&s)
	return s
}

// finish adds what follows from phase and containers.
func (g *generator) finish(s *v1.PodStatus) {
	if !podutil.IsTerminal(s.Phase) {
		// What has ended does not come back, whatever the runtime shows.
		for _, before := range []v1.PodPhase{g.old.Phase, g.pod.Status.Phase} {
			if podutil.IsTerminal(before) {
				s.Phase = before
				break
			}
		}
	}
	if s.Phase == g.old.Phase {
		s.Reason, s.Message = firstOf(g.old.Reason, g.pod.Status.Reason), firstOf(g.old.Message, g.pod.Status.Message)
	}
	if o := g.in.Override; o != nil && (!o.Yields || !g.in.Terminal || s.Phase != v1.PodSucceeded) {
		s.Phase, s.Reason, s.Message = o.Phase, o.Reason, o.Message
		if s.Phase == "" {
			s.Phase = v1.PodFailed
		}
	}
	if podutil.IsTerminal(g.pod.Status.Phase) {
		s.Phase = g.pod.Status.Phase
	}
	g.conditions(s)
	Normalize(g.pod, s)
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// addresses of the pod and its node. A pod keeps the ones that it had when its sandbox is gone.
func (g *generator) addresses(s *v1.PodStatus) {
	s.HostIP, s.HostIPs = g.old.HostIP, slices.Clone(g.old.HostIPs)
	if len(g.in.HostIPs) > 0 {
		s.HostIP, s.HostIPs = g.in.HostIPs[0], nil
		for _, ip := range g.in.HostIPs[:min(2, len(g.in.HostIPs))] {
			s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
		}
	}

	s.PodIP, s.PodIPs = g.old.PodIP, slices.Clone(g.old.PodIPs)
	if g.pod.Spec.HostNetwork {
		if s.PodIP == "" && s.HostIP != "" {
			s.PodIP, s.PodIPs = s.HostIP, []v1.PodIP{{IP: s.HostIP}}
		}
		if len(s.HostIPs) == 2 && len(s.PodIPs) == 1 && isIPv6(s.PodIPs[0].IP) != isIPv6(s.HostIPs[1].IP) {
			s.PodIPs = append(s.PodIPs, v1.PodIP{IP: s.HostIPs[1].IP})
		}
		return
	}
	if g.st == nil {
		return
	}
	sandbox := g.st.ReadySandbox()
	if sandbox == nil || sandbox.HostNetwork {
		return
	}
	s.PodIP, s.PodIPs = "", nil
	for _, ip := range SortIPs(sandbox.IPs, s.HostIP) {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

// SortIPs picks the first address of the node's primary family and then the first of the
// other one; what is not an address, or has a zone, is left out: the API server would refuse the status.
// An empty nodeIP stands for IPv4.
func SortIPs(ips []string, nodeIP string) []string {
	var same, other string
	for _, text := range ips {
		ip := netutils.ParseIPSloppy(text)
		switch {
		case ip == nil:
		case netutils.IsIPv6(ip) == isIPv6(nodeIP):
			same = cmp.Or(same, ip.String())
		default:
			other = cmp.Or(other, ip.String())
		}
	}
	var sorted []string
	for _, ip := range []string{same, other} {
		if ip != "" {
			sorted = append(sorted, ip)
		}
	}
	return sorted
}

func isIPv6(s string) bool {
	addr, err := netip.ParseAddr(s)
	return err == nil && addr.Unmap().Is6()
}
