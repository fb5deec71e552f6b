package twins

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/pkg/kubelet/preemption"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	schedulerframework "k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/microlet/microlet/services/podsync/internal/admission"
)

// request is a pod that asks for admission, and what it finds.
type request struct {
	Pod    *v1.Pod
	Others []*v1.Pod
	Node   *v1.Node
	// Newer are the labels that the node has by now.
	Newer map[string]string
}

// admitted is the answer.
type admitted struct {
	Reason, Message string
	// Victims are those that end for the pod.
	Victims []string
}

var _ = register(Pair[request, admitted]{
	Name:     "admission",
	Generate: drawRequest,
	Upstream: kubeletAdmits,
	Ours:     weAdmit,
	Branches: admissionBranches,
	Wanted: []string{"admits", "admits at the cost of others", "admits by newer labels",
		"rejects: NodeAffinity", "rejects: NodeName", "rejects: NodePorts", "rejects: TaintToleration",
		"rejects: OutOfcpu", "rejects: OutOfmemory", "rejects: OutOfephemeral-storage", "rejects: OutOfpods",
		"rejects: OutOfexample.com/gpu", "rejects: OutOfhugepages-2Mi", "rejects: OutOfattachable-volumes-x",
		"rejects: OutOfkubernetes.io/batch", "rejects: PodOSNotSupported", "rejects: PodOSSelectorNodeLabelDoesNotMatch",
		"rejects: SupplementalGroupsPolicyNotSupported", "rejects: UnexpectedAdmissionError"},
	Differences: []Difference[request, admitted]{
		{Name: "knows its OS with the newest labels, too", As: func(in request) (request, bool) {
			newest := in.Newer
			if newest == nil {
				newest = in.Node.Labels
			}
			if newest[v1.LabelOSStable] == "linux" {
				return in, false
			}
			in.Newer = maps.Clone(newest)
			in.Newer[v1.LabelOSStable] = "linux"
			return in, true
		}},
		{Name: "asks for newer labels for a critical pod that lacks resources", As: func(in request) (request, bool) {
			if in.Newer == nil || !kubetypes.IsCriticalPod(in.Pod) || kubeletAdmits(in).Reason != "NodeAffinity" {
				return in, false
			}
			newer := in
			newer.Node = in.Node.DeepCopy()
			newer.Node.Labels = in.Newer
			if reason := kubeletAdmits(newer).Reason; reason != "" && reason != "UnexpectedAdmissionError" {
				return in, false // it is not for the labels alone
			}
			return newer, true
		}},
		{Name: "leaves a device of which the Node has none to resources", As: func(in request) (request, bool) {
			const gpu = v1.ResourceName("example.com/gpu")
			if amount, has := in.Node.Status.Allocatable[gpu]; !has || !amount.IsZero() {
				return in, false
			}
			in.Node = in.Node.DeepCopy()
			in.Node.Status.Allocatable[gpu] = *resource.NewQuantity(1<<62, resource.DecimalSI)
			return in, true
		}},
	},
	Break: func(_ request, out *admitted) { out.Reason = strings.Replace(out.Reason, "OutOfpods", "OutOfcpu", 1) },
})

func admissionBranches(in request, out admitted) []string {
	switch {
	case out.Reason != "":
		return []string{"rejects: " + out.Reason}
	case len(out.Victims) > 0:
		return []string{"admits at the cost of others"}
	case in.Newer != nil:
		in.Newer = nil
		if kubeletAdmits(in).Reason != "" {
			return []string{"admits by newer labels"}
		}
	}
	return []string{"admits"}
}

// scalars are resources of which a node counts whole units. The kubelet's order of those is random, so a node has one.
var scalars = []v1.ResourceName{"example.com/gpu", "hugepages-2Mi", "attachable-volumes-x", "kubernetes.io/batch"}

// elsewhere is a resource that the node does not have.
const elsewhere = "elsewhere.example/fpga"

// drawRequest draws a pod, those that run, and a node that is nearly full.
func drawRequest(s *Source) request {
	scalar := OneOf(s, scalars...)
	in := request{Node: drawNode(s, scalar)}
	in.Pod = drawApplicant(s, "pod", scalar)
	if s.Percent(8) {
		in.Pod.Spec.NodeName = "other"
	}
	drawConstraints(s, in.Pod)
	for i := range OneOf(s, 0, 1, 2, 3, 4, 5) {
		in.Others = append(in.Others, drawApplicant(s, fmt.Sprint("other", i), scalar))
	}
	if s.Percent(30) {
		in.Newer = drawLabels(s)
	}
	return in
}

func drawNode(s *Source, scalar v1.ResourceName) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: drawLabels(s)}}
	n.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU:              OneOf(s, resource.MustParse("2"), resource.MustParse("1"), resource.MustParse("500m")),
		v1.ResourceMemory:           OneOf(s, admissionAmounts[4:7]...),
		v1.ResourceEphemeralStorage: OneOf(s, admissionAmounts[4:7]...),
		v1.ResourcePods:             *resource.NewQuantity(OneOf(s, int64(110), 110, 110, 3, 1), resource.DecimalSI),
	}
	if !s.Percent(30) {
		n.Status.Allocatable[scalar] = resource.MustParse(OneOf(s, "2", "3", "0"))
	}
	for range OneOf(s, 0, 0, 1, 2) {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{
			Key: OneOf(s, "a", "5"), Value: OneOf(s, "", "1", "2"),
			Effect: OneOf(s, v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule),
		})
	}
	if s.Percent(50) {
		n.Status.Features = &v1.NodeFeatures{}
		if s.Percent(70) {
			n.Status.Features.SupplementalGroupsPolicy = new(s.Percent(50))
		}
	}
	return n
}

func drawLabels(s *Source) map[string]string {
	labels := map[string]string{v1.LabelOSStable: "linux", v1.LabelHostname: "node"}
	if s.Percent(10) {
		delete(labels, v1.LabelOSStable)
	} else if s.Percent(5) {
		labels[v1.LabelOSStable] = "windows"
	}
	if s.Percent(60) {
		labels["zone"] = OneOf(s, "a", "b", "5")
	}
	return labels
}

var admissionAmounts = []resource.Quantity{
	resource.MustParse("0"), resource.MustParse("1"), resource.MustParse("300"), resource.MustParse("400m"),
	resource.MustParse("3000"), resource.MustParse("1Ki"), resource.MustParse("500"), resource.MustParse("1500m"),
}

// drawApplicant draws a pod with what counts for others, too.
func drawApplicant(s *Source, name string, scalar v1.ResourceName) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name)}}
	p.Spec.NodeName = "node"
	switch OneOf(s, "", "", "", "static", "mirror", "critical", "low", "high") {
	case "static":
		p.Annotations = map[string]string{kubetypes.ConfigSourceAnnotationKey: OneOf(s, "file", "http", "api")}
	case "mirror":
		p.Annotations = map[string]string{kubetypes.ConfigMirrorAnnotationKey: "1"}
	case "critical":
		p.Spec.Priority = new(OneOf(s, int32(2_000_000_000), 2_000_001_000))
	case "low":
		p.Spec.Priority = new(int32(-1))
	case "high":
		p.Spec.Priority = new(int32(1000))
	}
	for range OneOf(s, 0, 0, 0, 1, 2) {
		c := drawAdmissionContainer(s, scalar)
		if s.Percent(50) {
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for range OneOf(s, 1, 1, 2) {
		p.Spec.Containers = append(p.Spec.Containers, drawAdmissionContainer(s, scalar))
	}
	if s.Percent(10) {
		r := drawAdmissionResources(s, scalar)
		maps.DeleteFunc(r.Requests, func(name v1.ResourceName, _ resource.Quantity) bool { return !isPodLevel(name) })
		maps.DeleteFunc(r.Limits, func(name v1.ResourceName, _ resource.Quantity) bool { return !isPodLevel(name) })
		p.Spec.Resources = &r
	}
	if s.Percent(10) {
		p.Spec.Overhead = drawAdmissionResources(s, scalar).Requests
		delete(p.Spec.Overhead, elsewhere)
	}
	return p
}

func isPodLevel(name v1.ResourceName) bool {
	return name == v1.ResourceCPU || name == v1.ResourceMemory || strings.HasPrefix(string(name), "hugepages-")
}

func drawAdmissionContainer(s *Source, scalar v1.ResourceName) v1.Container {
	c := v1.Container{Name: "c", Resources: drawAdmissionResources(s, scalar)}
	for range OneOf(s, 0, 0, 0, 1, 2) {
		c.Ports = append(c.Ports, v1.ContainerPort{
			ContainerPort: 80, HostPort: OneOf(s, int32(0), 80, 81),
			HostIP:   OneOf(s, "", "0.0.0.0", "10.0.0.1", "::", "10.0.0.2"),
			Protocol: OneOf(s, "", v1.ProtocolTCP, v1.ProtocolUDP),
		})
	}
	return c
}

func drawAdmissionResources(s *Source, scalar v1.ResourceName) v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{}}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		if !s.Percent(35) {
			continue
		}
		r.Requests[name] = OneOf(s, admissionAmounts[:4]...)
		if name == v1.ResourceCPU {
			r.Requests[name] = OneOf(s, resource.MustParse("300m"), resource.MustParse("0"), resource.MustParse("1"),
				resource.MustParse("500u"))
		}
	}
	if s.Percent(15) {
		r.Requests[scalar] = resource.MustParse(OneOf(s, "1", "2", "0"))
	}
	if s.Percent(5) {
		r.Requests[elsewhere] = resource.MustParse("1")
	}
	if s.Percent(30) {
		r.Limits = maps.Clone(r.Requests)
	}
	return r
}

// drawConstraints draws what a pod asks of its node besides resources.
func drawConstraints(s *Source, p *v1.Pod) {
	if s.Percent(15) {
		p.Spec.NodeSelector = map[string]string{OneOf(s, "zone", v1.LabelOSStable): OneOf(s, "a", "linux", "b")}
	}
	if s.Percent(20) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{}}
		if s.Percent(90) {
			p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = drawNodeSelector(s)
		}
	}
	for range OneOf(s, 0, 0, 1, 2) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{
			Key:      OneOf(s, "a", "", "5"),
			Operator: OneOf(s, "", v1.TolerationOpExists, v1.TolerationOpEqual, v1.TolerationOpGt),
			Value:    OneOf(s, "", "1", "2"), Effect: OneOf(s, "", v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule),
		})
	}
	if s.Percent(5) {
		p.Labels = map[string]string{v1.LabelOSStable: OneOf(s, "linux", "windows")}
	}
	if s.Percent(5) {
		p.Spec.OS = &v1.PodOS{Name: OneOf(s, v1.Linux, v1.Windows)}
	}
	if s.Percent(10) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{}
		if s.Percent(80) {
			p.Spec.SecurityContext.SupplementalGroupsPolicy = new(OneOf(s, v1.SupplementalGroupsPolicyMerge,
				v1.SupplementalGroupsPolicyStrict))
		}
	}
}

func drawNodeSelector(s *Source) *v1.NodeSelector {
	selector := &v1.NodeSelector{}
	for range OneOf(s, 1, 2, 0) {
		var term v1.NodeSelectorTerm
		for range OneOf(s, 1, 0, 2) {
			e := v1.NodeSelectorRequirement{
				Key: OneOf(s, "zone", v1.LabelOSStable, "none", "a b"),
				Operator: OneOf(s, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists,
					v1.NodeSelectorOpDoesNotExist, v1.NodeSelectorOpGt, v1.NodeSelectorOpLt),
			}
			if e.Operator != v1.NodeSelectorOpExists && e.Operator != v1.NodeSelectorOpDoesNotExist {
				e.Values = []string{OneOf(s, "a", "b", "linux", "4", "6")}
			}
			term.MatchExpressions = append(term.MatchExpressions, e)
		}
		if s.Percent(20) {
			term.MatchFields = []v1.NodeSelectorRequirement{{Key: "metadata.name",
				Operator: OneOf(s, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn), Values: []string{OneOf(s, "node", "other")}}}
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
	}
	return selector
}

func kubeletAdmits(in request) admitted {
	var out admitted
	kill := func(p *v1.Pod, _ bool, _ *int64, _ func(*v1.PodStatus)) error {
		out.Victims = append(out.Victims, p.Name)
		return nil
	}
	handler := lifecycle.NewPredicateAdmitHandler(
		func(_ context.Context, cached bool) (*v1.Node, error) {
			node := in.Node.DeepCopy() // it sets a label
			if !cached && in.Newer != nil {
				node.Labels = maps.Clone(in.Newer)
			}
			return node, nil
		},
		preemption.NewCriticalPodAdmissionHandler(func() []*v1.Pod { return in.Others }, kill, &record.FakeRecorder{}),
		func(*schedulerframework.NodeInfo, *lifecycle.PodAdmitAttributes) error { return nil },
	)
	result := handler.Admit(context.Background(), &lifecycle.PodAdmitAttributes{
		Pod: in.Pod, OtherPods: in.Others, Operation: lifecycle.AddOperation,
	})
	out.Reason, out.Message = result.Reason, result.Message
	if result.Admit != (out.Reason == "") {
		out.Reason = "admits with a reason"
	}
	return out
}

func weAdmit(in request) admitted {
	a := &admission.Attributes{Pod: in.Pod, Others: slices.Clone(in.Others), Node: in.Node}
	result := admission.NodeFit{}.Admit(context.Background(), a)
	if result.NodeMayBeOld && in.Newer != nil {
		a.Node = in.Node.DeepCopy()
		a.Node.Labels = in.Newer
		result = admission.NodeFit{}.Admit(context.Background(), a)
	}
	out := admitted{Reason: result.Reason, Message: result.Message}
	if result.Preempt != nil {
		out.Victims = podNames(result.Preempt.Victims)
	}
	return out
}
