package node

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// reconciledLabels are those that a node's agent brings up to date on a Node that exists already.
// All other labels, --node-labels among them, are set at creation only, as by the kubelet.
var reconciledLabels = []string{
	v1.LabelHostname,
	v1.LabelTopologyZone, v1.LabelTopologyRegion,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
	v1.LabelOSStable, v1.LabelArchStable, v1.LabelWindowsBuild,
	labelOSBeta, labelArchBeta,
}

// Reconcile brings a Node that exists already in line with the one that would have been registered,
// and reports whether that changed anything. Huge pages follow the kernel.
//
// Extended resources are zeroed after a reboot of the machine. devices says that resources has reported: then those of
// device plugins show what it reports, and what is left is an operator's and stays, as with a kubelet that has a
// checkpoint of devices.
func Reconcile(existing, initial *v1.Node, devices bool) bool {
	changed := reconcileAttachDetach(existing, initial)
	changed = reconcileLabels(existing, initial) || changed
	return reconcileResources(existing, initial, devices) || changed
}

func reconcileAttachDetach(existing, initial *v1.Node) bool {
	want, set := initial.Annotations[annotationAttachDetach]
	if existing.Annotations[annotationAttachDetach] == want {
		return false
	}
	if !set {
		delete(existing.Annotations, annotationAttachDetach)
		return true
	}
	if existing.Annotations == nil {
		existing.Annotations = map[string]string{}
	}
	existing.Annotations[annotationAttachDetach] = want
	return true
}

func reconcileLabels(existing, initial *v1.Node) bool {
	changed := false
	if existing.Labels == nil {
		existing.Labels = map[string]string{}
	}
	for _, label := range reconciledLabels {
		want, set := initial.Labels[label]
		if !set {
			continue
		}
		if have, has := existing.Labels[label]; want == "" && has {
			delete(existing.Labels, label)
			changed = true
		} else if want != "" && have != want {
			existing.Labels[label] = want
			changed = true
		}
	}
	return changed
}

func reconcileResources(existing, initial *v1.Node, devices bool) bool {
	changed := false
	have, want := &existing.Status, &initial.Status
	if have.Capacity == nil {
		have.Capacity = want.Capacity.DeepCopy()
		changed = have.Capacity != nil
	}
	if have.Allocatable == nil {
		have.Allocatable = want.Allocatable.DeepCopy()
		changed = changed || have.Allocatable != nil
	}
	booted := want.NodeInfo.BootID != "" && have.NodeInfo.BootID != "" && want.NodeInfo.BootID != have.NodeInfo.BootID
	for name, q := range have.Capacity {
		allocatable := have.Allocatable[name]
		switch {
		case podutil.IsExtended(name) && booted && !devices && !(q.IsZero() && allocatable.IsZero()):
			have.Capacity[name] = *resource.NewQuantity(0, resource.DecimalSI)
			setQuantity(&have.Allocatable, name, *resource.NewQuantity(0, resource.DecimalSI))
			changed = true
		case isHugePages(name):
			if _, still := want.Capacity[name]; !still && len(want.Capacity) > 0 {
				delete(have.Capacity, name)
				delete(have.Allocatable, name)
				changed = true
			}
		}
	}
	for name, q := range want.Capacity {
		if !isHugePages(name) {
			continue
		}
		if old, has := have.Capacity[name]; !has || old.Cmp(q) != 0 {
			setQuantity(&have.Capacity, name, q.DeepCopy())
			changed = true
		}
		allocatable := want.Allocatable[name]
		if old, has := have.Allocatable[name]; !has || old.Cmp(allocatable) != 0 {
			setQuantity(&have.Allocatable, name, allocatable.DeepCopy())
			changed = true
		}
	}
	return changed
}

func setQuantity(list *v1.ResourceList, name v1.ResourceName, q resource.Quantity) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = q
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}
