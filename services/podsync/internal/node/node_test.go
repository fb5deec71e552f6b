package node

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	machine "github.com/microlet/microlet/services/podsync/internal/node/internal/capacity"
)

// can is a runtime that supports the policy of supplemental groups, or does not.
type can bool

func (c can) SupplementalGroupsPolicy() bool { return bool(c) }

func TestOwnNodeIsAsThisMachineWouldRegisterIt(t *testing.T) {
	k := &kubeletconfig.Config{}
	k.Node.NodeLabels = map[string]string{"zone": "a", v1.LabelHostname: "other"}
	k.Kubelet.RegisterWithTaints = []v1.Taint{{Key: "dedicated", Effect: v1.TaintEffectNoSchedule}}
	total := v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}
	allocatable := v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}
	capacity := machine.Capacity{Total: total, Allocatable: allocatable}
	o := Options{Name: "n", Kubelet: k, Runtime: can(true)}
	own := o.own(capacity)
	if own.Name != "n" || own.Labels["zone"] != "a" || own.Labels[v1.LabelHostname] != "other" ||
		own.Labels[v1.LabelOSStable] != "linux" {
		t.Errorf("node %s has labels %v", own.Name, own.Labels)
	}
	if len(own.Spec.Taints) != 1 || own.Status.Capacity.Cpu().Value() != 4 ||
		own.Status.Allocatable.Cpu().Value() != 3 {
		t.Errorf("taints %v, capacity %v, allocatable %v", own.Spec.Taints, own.Status.Capacity, own.Status.Allocatable)
	}
	if f := own.Status.Features; f == nil || !*f.SupplementalGroupsPolicy {
		t.Errorf("features %+v", f)
	}
	o.Runtime = can(false)
	if f := o.own(capacity).Status.Features; f == nil || *f.SupplementalGroupsPolicy {
		t.Errorf("features %+v of a runtime that cannot", f)
	}
}
