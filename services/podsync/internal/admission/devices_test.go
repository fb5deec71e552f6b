package admission

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The service resources decides on what it hands out, and admission on all else.
func TestNodeFitLeavesDevicesToResources(t *testing.T) {
	const gpu = v1.ResourceName("example.com/gpu")
	for _, c := range []struct {
		name    string
		onNode  v1.ResourceList
		devices devices
		reason  string
	}{
		{"a device", list(string(gpu), "1"), devices{list(string(gpu), "1"), true}, ""},
		{"a device whose plugin is away", list(string(gpu), "0"), devices{list(string(gpu), "0"), true}, ""},
		{"an operator's resource", list(string(gpu), "1"), devices{v1.ResourceList{}, true}, "OutOf" + string(gpu)},
		{"none of an operator's resource", list(string(gpu), "0"), devices{v1.ResourceList{}, true}, "OutOf" + string(gpu)},
		{"a resource that the Node does not know", nil, devices{v1.ResourceList{}, true}, ""},
		{"not enough, before resources has said anything", list(string(gpu), "1"), devices{}, "OutOf" + string(gpu)},
		{"what a plugin left, before resources has said anything", list(string(gpu), "0"), devices{}, ""},
	} {
		n := testNode()
		delete(n.Status.Allocatable, gpu)
		for name, amount := range c.onNode {
			n.Status.Allocatable[name] = amount
		}
		v := NodeFit{}.Admit(t.Context(), &Attributes{Pod: requesting("p", string(gpu), "2"), Node: n, devices: c.devices})
		if v.Reason != c.reason {
			t.Errorf("%s: %q %q, want %q", c.name, v.Reason, v.Message, c.reason)
		}
	}
}

// Who asks how a pod would fare learns what resources would say.
func TestJudgeCountsDevices(t *testing.T) {
	a := newMachine(t)
	a.o.Extended = func() (v1.ResourceList, bool) { return list("example.com/gpu", "3"), true }
	if v := a.Judge(t.Context(), requesting("p", "example.com/gpu", "4")); v.Reason != "OutOfexample.com/gpu" {
		t.Errorf("judged %q", v.Reason)
	}
	if v := a.Judge(t.Context(), requesting("p", "example.com/gpu", "3")); !v.Admitted() {
		t.Errorf("judged %q", v.Reason)
	}
}

// What is placed holds its devices: pods that were admitted, also while they leave, and what runs of no pod of this
// node.
func TestPlaced(t *testing.T) {
	running := map[types.UID]bool{"orphan": true, "ended": true, "static": true}
	a := newMachine(t)
	a.running = running
	pods := map[types.UID]*v1.Pod{}
	for _, uid := range []types.UID{"admitted", "ended", "static", "undecided"} {
		p := requesting(string(uid), "cpu", "500m")
		p.UID = uid
		pods[uid] = p
		a.Add(p, api)
	}
	a.Heard(api)
	for _, uid := range []types.UID{"admitted", "ended"} {
		if _, err := a.Admit(t.Context(), pods[uid], api, false); err != nil {
			t.Fatal(err)
		}
	}
	a.Ended("ended")
	placed, err := a.Placed(t.Context())
	slices.Sort(placed.UIDs)
	if err != nil || !slices.Contains(placed.UIDs, "admitted") || !slices.Contains(placed.UIDs, "orphan") ||
		!slices.Contains(placed.UIDs, "static") || slices.Contains(placed.UIDs, "ended") ||
		!placed.Leaving || placed.At.IsZero() {
		t.Errorf("placed %v, %v", placed, err)
	}
	delete(running, "orphan")
	if placed, _ = a.Placed(t.Context()); placed.Leaving {
		t.Errorf("leaving, although only pods of the node run: %v", placed)
	}
	a.Removed("admitted")
	if placed, _ = a.Placed(t.Context()); !placed.Leaving || !slices.Contains(placed.UIDs, "admitted") {
		t.Errorf("a pod that leaves: %v", placed)
	}
}
