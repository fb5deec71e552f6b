package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/pressure"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func resources(pairs ...string) v1.ResourceList {
	list := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func observed() Observed {
	return Observed{
		Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"},
			{Type: v1.NodeHostName, Address: "n"}},
		Capacity:    resources("cpu", "2", "memory", "4Gi", "pods", "110", "ephemeral-storage", "100Gi"),
		Allocatable: resources("cpu", "2", "memory", "3996Mi", "pods", "110", "ephemeral-storage", "90Gi"),
		Machine: nodeinfo.Machine{
			MachineID:  "m",
			SystemUUID: "s",
			BootID:     "b",
			Kernel:     "6.1",
			OSImage:    "os",
			SwapBytes:  1024,
		},
		Runtime: &podsyncv1.Runtime{Name: "containerd", Version: "v2.4.2", SupplementalGroupsPolicy: true,
			Handlers: []*podsyncv1.Runtime_Handler{{Name: "runc", UserNamespaces: true}, {Name: ""}}},
	}
}

func TestFirstStatus(t *testing.T) {
	s := Settings{
		Name:                   "n",
		Hostname:               "n",
		MicroletVersion:        "v1.0.0-rc.1 (dirty)",
		Labels:                 map[string]string{"a": "b", v1.LabelHostname: "other"},
		Taints:                 []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}},
		ProviderID:             "p://1",
		ControllerAttachDetach: true,
	}
	n, changed, events := s.Update(s.Initial(), observed(), now)
	if !changed || len(events) != 0 {
		t.Errorf("changed %v, events %v", changed, events)
	}
	wantLabels := map[string]string{
		"a":                "b",
		v1.LabelHostname:   "other",
		v1.LabelOSStable:   "linux",
		labelOSBeta:        "linux",
		v1.LabelArchStable: n.Status.NodeInfo.Architecture,
		labelArchBeta:      n.Status.NodeInfo.Architecture,
	}
	if d := cmp.Diff(wantLabels, n.Labels); d != "" {
		t.Errorf("labels:\n%s", d)
	}
	if n.Spec.ProviderID != "p://1" || len(n.Spec.Taints) != 1 || n.Annotations[annotationAttachDetach] != "true" {
		t.Errorf("spec %v, annotations %v", n.Spec, n.Annotations)
	}
	info := n.Status.NodeInfo
	if info.KubeletVersion != "v"+kubeversion.Version+"+microlet.v1.0.0-rc.1-dirty-" ||
		info.ContainerRuntimeVersion != "containerd://v2.4.2" ||
		info.OSImage != "os" || *info.Swap.Capacity != 1024 || info.SystemUUID != "s" {
		t.Errorf("node info %+v", info)
	}
	if info.RunningInUserNamespace != nil {
		t.Errorf("the node says that it runs in a user namespace or not, without the gate: %v", *info.RunningInUserNamespace)
	}
	for _, in := range []bool{false, true} {
		s, o := s, observed()
		s.UserNamespace, o.Machine.UserNamespace = true, in
		n, _, _ := s.Update(n, o, now)
		if says := n.Status.NodeInfo.RunningInUserNamespace; says == nil || *says != in {
			t.Errorf("the node says %v of a user namespace, want %v", says, in)
		}
	}
	if h := n.Status.RuntimeHandlers; len(h) != 2 || h[0].Name != "" || !*h[1].Features.UserNamespaces ||
		*h[1].Features.RecursiveReadOnlyMounts {
		t.Errorf("runtime handlers %v", h)
	}
	if !*n.Status.Features.SupplementalGroupsPolicy {
		t.Error("supplemental groups policy is lost")
	}
	last := n.Status.Conditions[len(n.Status.Conditions)-1]
	if last.Type != v1.NodeReady || last.Status != v1.ConditionTrue || last.Reason != "KubeletReady" ||
		last.Message != "kubelet is posting ready status" {
		t.Errorf("last condition %+v, want Ready", last)
	}
	if _, again, _ := s.Update(n, observed(), now.Add(time.Hour)); again {
		t.Error("the same observation an hour later counts as a change")
	}
}

func TestKubeletPort(t *testing.T) {
	s := Settings{Name: "n", Hostname: "n", KubeletPort: 10250}
	n, _, _ := s.Update(s.Initial(), observed(), now)
	if got := n.Status.DaemonEndpoints.KubeletEndpoint.Port; got != 10250 {
		t.Errorf("the kubelet's port is %d, want 10250", got)
	}
	s.KubeletPort = 0 // the server was switched off
	if n, changed, _ := s.Update(n, observed(), now); !changed || n.Status.DaemonEndpoints.KubeletEndpoint.Port != 0 {
		t.Errorf("a port that is served no more is still reported: %v", n.Status.DaemonEndpoints)
	}
}

func TestUnknownLeavesWhatTheNodeSays(t *testing.T) {
	s := Settings{Name: "n", Hostname: "n"}
	before, _, _ := s.Update(s.Initial(), observed(), now)
	before.Status.VolumesInUse = []v1.UniqueVolumeName{"v"}
	before.Status.Capacity["example.com/gpu"] = resource.MustParse("2")
	before.Status.Allocatable["example.com/gpu"] = resource.MustParse("2")
	after, changed, _ := s.Update(before, Observed{}, now)
	if changed {
		t.Errorf("nothing observed changed the node:\n%s", cmp.Diff(before, after))
	}
}

func TestVolumesInUseAreThoseOfPodsync(t *testing.T) {
	s := Settings{Name: "n", Hostname: "n"}
	o := observed()
	o.Volumes = &podsyncv1.Volumes{InUse: []string{"kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b"}}
	n, changed, _ := s.Update(s.Initial(), o, now)
	if want := []v1.UniqueVolumeName{"kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b"}; !changed ||
		!slices.Equal(n.Status.VolumesInUse, want) {
		t.Errorf("in use: %q", n.Status.VolumesInUse)
	}
	if _, changed, _ := s.Update(n, o, now.Add(time.Hour)); changed {
		t.Error("the same list counts as a change")
	}
	o.Volumes = &podsyncv1.Volumes{}
	if n, changed, _ := s.Update(n, o, now); !changed || len(n.Status.VolumesInUse) != 0 {
		t.Errorf("none is in use, and the Node has %q", n.Status.VolumesInUse)
	}
}

func TestReadyCondition(t *testing.T) {
	s := Settings{Name: "n", Hostname: "n"}
	ready, _, _ := s.Update(s.Initial(), observed(), now)
	cases := []struct {
		name    string
		change  func(*Observed)
		status  v1.ConditionStatus
		message string
		event   string
	}{
		{"ready", func(*Observed) {}, v1.ConditionTrue, "kubelet is posting ready status", ""},
		{"one problem", func(o *Observed) { o.Problems = []error{errors.New("container runtime is down")} },
			v1.ConditionFalse, "container runtime is down", "NodeNotReady"},
		{"several", func(o *Observed) {
			o.Problems = []error{errors.New("container runtime is down"), errors.New("PLEG is not healthy: x")}
		}, v1.ConditionFalse, "[container runtime is down, PLEG is not healthy: x]", "NodeNotReady"},
		{"warning", func(o *Observed) { o.Warning = "w" }, v1.ConditionTrue, "kubelet is posting ready status. WARNING: w",
			""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := observed()
			c.change(&o)
			n, _, events := s.Update(ready, o, now.Add(time.Minute))
			got := Condition(n, v1.NodeReady)
			if got.Status != c.status || got.Message != c.message ||
				!got.LastHeartbeatTime.Time.Equal(now.Add(time.Minute)) {
				t.Errorf("condition %+v", got)
			}
			if moved := got.LastTransitionTime.Time.Equal(now.Add(time.Minute)); moved != (c.event != "") {
				t.Errorf("transition time moved: %v", moved)
			}
			switch {
			case c.event == "" && len(events) != 0:
				t.Errorf("events %v", events)
			case c.event != "" &&
				(len(events) != 1 || events[0].Reason != c.event ||
					events[0].Message != "Node n status is now: "+c.event):
				t.Errorf("events %v, want %s", events, c.event)
			}
		})
	}
	for isolation, want := range map[bool]string{
		true:  "missing node capacity for resources: memory, pods, ephemeral-storage",
		false: "missing node capacity for resources: memory, pods",
	} {
		s.LocalStorageCapacityIsolation = isolation
		n, _, _ := s.Update(&v1.Node{}, Observed{Capacity: resources("cpu", "1")}, now)
		if m := Condition(n, v1.NodeReady).Message; m != want {
			t.Errorf("message %q with isolation %t, want %q", m, isolation, want)
		}
	}
}

func TestPressureIsUnknownAfterWhatWasKnownIsStale(t *testing.T) {
	s := Settings{Name: "n"}
	n := &v1.Node{}
	n.Status.Conditions = []v1.NodeCondition{{
		Type:               v1.NodeMemoryPressure,
		Status:             v1.ConditionTrue,
		Reason:             "KubeletHasInsufficientMemory",
		LastHeartbeatTime:  metav1.NewTime(now),
		LastTransitionTime: metav1.NewTime(now),
	}}
	n, _, _ = s.Update(n, Observed{}, now.Add(4*time.Minute))
	if c := Condition(n, v1.NodeMemoryPressure); c.Status != v1.ConditionTrue || !c.LastHeartbeatTime.Time.Equal(now) {
		t.Errorf("after 4 minutes: %+v, want what the kubelet said", c)
	}
	n, _, _ = s.Update(n, Observed{}, now.Add(5*time.Minute))
	for _, p := range pressures {
		if c := Condition(n, p.condition); c.Status != v1.ConditionUnknown || c.Reason != "NoEvictor" {
			t.Errorf("after 5 minutes: %+v, want unknown", c)
		}
	}
}

// Words, transition and Events are the kubelet's.
func TestPressureIsWhatEvictorReports(t *testing.T) {
	s := Settings{Name: "n"}
	states := func(memory v1.ConditionStatus) []pressure.State {
		return []pressure.State{
			{Type: v1.NodeMemoryPressure, Status: memory, Problem: "no cgroup", Age: time.Second},
			{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}, {Type: v1.NodePIDPressure, Status: v1.ConditionFalse},
		}
	}
	n, _, events := s.Update(&v1.Node{}, Observed{Pressure: states(v1.ConditionFalse)}, now)
	c := Condition(n, v1.NodeMemoryPressure)
	if c.Status != v1.ConditionFalse || c.Reason != "KubeletHasSufficientMemory" ||
		c.Message != "kubelet has sufficient memory available" || !c.LastHeartbeatTime.Time.Equal(now.Add(-time.Second)) {
		t.Errorf("without pressure: %+v", c)
	}
	var reasons []string
	for _, e := range events {
		reasons = append(reasons, e.Reason)
	}
	if want := []string{"NodeHasSufficientMemory", "NodeHasDiskPressure", "NodeHasSufficientPID"}; !slices.Equal(reasons,
		want) {
		t.Errorf("events %q, want %q", reasons, want)
	}
	later := now.Add(time.Minute)
	n, changed, events := s.Update(n, Observed{Pressure: states(v1.ConditionTrue)}, later)
	c = Condition(n, v1.NodeMemoryPressure)
	if !changed || len(events) != 1 || events[0].Message != "Node n status is now: NodeHasInsufficientMemory" ||
		c.Reason != "KubeletHasInsufficientMemory" || !c.LastTransitionTime.Time.Equal(later) {
		t.Errorf("under pressure: %+v, events %v", c, events)
	}
	n, _, _ = s.Update(n, Observed{Pressure: states(v1.ConditionUnknown)}, later.Add(time.Minute))
	if c = Condition(n, v1.NodeMemoryPressure); c.Status != v1.ConditionTrue {
		t.Errorf("a minute without a reading: %+v, want what was read last", c)
	}
	n, _, events = s.Update(n, Observed{Pressure: states(v1.ConditionUnknown)}, later.Add(6*time.Minute))
	if c = Condition(n, v1.NodeMemoryPressure); c.Status != v1.ConditionUnknown || c.Reason != "SignalsUnreadable" ||
		c.Message != "evictor cannot measure it: no cgroup" || len(events) != 0 {
		t.Errorf("long without a reading: %+v, events %v", c, events)
	}
	long := []pressure.State{
		{Type: v1.NodeMemoryPressure, Status: v1.ConditionUnknown, Problem: strings.Repeat("€", 5000)},
	}
	n, _, _ = s.Update(n, Observed{Pressure: long}, later.Add(7*time.Minute))
	if c = Condition(n, v1.NodeMemoryPressure); len(c.Message) > maxProblem+100 || !utf8.ValidString(c.Message) {
		t.Errorf("a long problem makes a message of %d bytes: %s", len(c.Message), c.Message)
	}
}

func TestRebootIsTold(t *testing.T) {
	s := Settings{Name: "n"}
	n, _, _ := s.Update(s.Initial(), observed(), now)
	o := observed()
	o.Machine.BootID = "b2"
	_, _, events := s.Update(n, o, now)
	if len(events) != 1 ||
		events[0] != (Event{v1.EventTypeWarning, "Rebooted", "Node n has been rebooted, boot id: b2"}) {
		t.Errorf("events %v", events)
	}
}

func TestReconcile(t *testing.T) {
	s := Settings{
		Name:                   "n",
		Hostname:               "n",
		ControllerAttachDetach: true,
		Labels:                 map[string]string{"own": "new", v1.LabelTopologyZone: "z"},
	}
	o := observed()
	o.Capacity["hugepages-2Mi"], o.Allocatable["hugepages-2Mi"] = resource.MustParse("4Mi"), resource.MustParse("4Mi")
	initial, _, _ := s.Update(s.Initial(), o, now)

	same := initial.DeepCopy()
	if Reconcile(same, initial, false) {
		t.Errorf("the same node was changed:\n%s", cmp.Diff(initial, same))
	}

	old := initial.DeepCopy()
	old.Labels = map[string]string{"own": "old", v1.LabelHostname: "wrong", labelOSBeta: "plan9"}
	old.Annotations = nil
	old.Status.NodeInfo.BootID = "earlier"
	old.Status.Capacity = resources("cpu", "1", "example.com/gpu", "2", "hugepages-1Gi", "1Gi")
	old.Status.Allocatable = resources("cpu", "1", "example.com/gpu", "2", "hugepages-1Gi", "1Gi")
	if !Reconcile(old, initial, false) {
		t.Fatal("nothing changed")
	}
	if old.Labels["own"] != "old" || old.Labels[v1.LabelHostname] != "n" || old.Labels[labelOSBeta] != "linux" ||
		old.Labels[v1.LabelTopologyZone] != "z" {
		t.Errorf("labels %v", old.Labels)
	}
	if old.Annotations[annotationAttachDetach] != "true" {
		t.Errorf("annotations %v", old.Annotations)
	}
	for name, want := range map[v1.ResourceName]string{"example.com/gpu": "0", "hugepages-2Mi": "4Mi", "cpu": "1"} {
		if c, a := old.Status.Capacity[name], old.Status.Allocatable[name]; c.String() != want || a.String() != want {
			t.Errorf("%s = %s of %s, want %s", name, a.String(), c.String(), want)
		}
	}
	if _, has := old.Status.Capacity["hugepages-1Gi"]; has {
		t.Error("huge pages of a size that the kernel lost are still there")
	}
	again := initial.DeepCopy()
	again.Status.NodeInfo.BootID = "earlier"
	if Reconcile(old, again, false) {
		t.Error("reconciling twice changed something")
	}
}

// What resources reports shows, also after a reboot, and an operator's resource stays then.
func TestExtendedResources(t *testing.T) {
	s := Settings{Name: "n", Hostname: "n"}
	o := observed()
	o.Extended = &resourcesv1.NodeResources{Resources: []*resourcesv1.NodeResources_Resource{
		{Name: "cpu", Capacity: 1000, Allocatable: 1000},
		{Name: "example.com/away"},
		{Name: "example.com/gpu", Capacity: 4, Allocatable: 3},
		{Name: "example.com/liar", Capacity: -1, Allocatable: 2},
	}}
	existing, _, _ := s.Update(s.Initial(), observed(), now)
	for name, amount := range map[v1.ResourceName]string{"example.com/away": "2", "example.com/opaque": "5"} {
		existing.Status.Capacity[name] = resource.MustParse(amount)
		existing.Status.Allocatable[name] = resource.MustParse(amount)
	}
	existing.Status.NodeInfo.BootID = "earlier"
	initial, _, _ := s.Update(s.Initial(), o, now)
	Reconcile(existing, initial, true)
	n, _, _ := s.Update(existing, o, now)
	for name, want := range map[v1.ResourceName][2]int64{
		"example.com/away": {0, 0}, "example.com/gpu": {4, 3}, "example.com/liar": {0, 0}, "example.com/opaque": {5, 5},
	} {
		c, a := n.Status.Capacity[name], n.Status.Allocatable[name]
		if c.Value() != want[0] || a.Value() != want[1] {
			t.Errorf("%s is %s of %s, want %v", name, a.String(), c.String(), want)
		}
	}
	if n.Status.Capacity.Cpu().Value() == 1000 {
		t.Error("a device plugin set the number of CPUs")
	}
	o.Extended = nil
	n, _, _ = s.Update(n, o, now)
	if c := n.Status.Capacity["example.com/gpu"]; c.Value() != 4 {
		t.Errorf("without a report, the Node has %s", c.String())
	}
}

// host is a Network with the given addresses; the first is on the default route.
type host struct {
	own      []netip.Addr
	resolved []netip.Addr
}

func (h host) Interfaces() ([]netip.Addr, error) { return h.own, nil }
func (h host) Lookup(context.Context, string) ([]netip.Addr, error) {
	if h.resolved == nil {
		return nil, errors.New("no such host")
	}
	return h.resolved, nil
}

func (h host) DefaultRoute(prefer netip.Addr) (netip.Addr, error) {
	for _, a := range h.own {
		if !prefer.IsValid() || prefer.Is4() == a.Is4() {
			return a, nil
		}
	}
	return netip.Addr{}, errors.New("no default route")
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestAddresses(t *testing.T) {
	h := host{own: addrs("10.0.0.1", "fd00::1", "10.0.0.2")}
	resolving := host{own: h.own, resolved: addrs("127.0.1.1", "fd00::1", "10.0.0.2", "10.9.9.9")}
	cases := []struct {
		name     string
		settings Settings
		network  Network
		want     string // InternalIPs
		err      string
	}{
		{"default route", Settings{}, h, "10.0.0.1", ""},
		{"the node's name", Settings{}, resolving, "10.0.0.2", ""},
		{"the node's name, IPv6", Settings{NodeIPs: addrs("::")}, resolving, "fd00::1", ""},
		{"hostname is an address", Settings{Hostname: "192.0.2.1"}, resolving, "192.0.2.1", ""},
		{"--node-ip", Settings{NodeIPs: addrs("10.0.0.2")}, h, "10.0.0.2", ""},
		{"dual stack", Settings{NodeIPs: addrs("10.0.0.2", "fd00::1")}, h, "10.0.0.2 fd00::1", ""},
		{"only the family, IPv6", Settings{NodeIPs: addrs("::")}, h, "fd00::1", ""},
		{"not on this host", Settings{NodeIPs: addrs("10.9.9.9")}, h, "", "on none of the host's network interfaces"},
		{"loopback", Settings{NodeIPs: addrs("127.0.0.1")}, h, "", "loopback"},
		{"external cloud", Settings{ExternalCloud: true}, h, "", ""},
		{"external cloud, own choice", Settings{ExternalCloud: true, NodeIPs: addrs("10.0.0.2")}, h, "10.0.0.2", ""},
		{"none", Settings{}, host{}, "", "set --node-ip"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := c.settings
			s.Name = "n"
			if s.Hostname == "" {
				s.Hostname = "n"
			}
			got, err := s.Addresses(t.Context(), c.network)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var internal []string
			for _, a := range got {
				if a.Type == v1.NodeInternalIP {
					internal = append(internal, a.Address)
				}
			}
			if strings.Join(internal, " ") != c.want {
				t.Errorf("internal addresses %v, want %s", internal, c.want)
			}
			if last := got[len(got)-1]; last != (v1.NodeAddress{Type: v1.NodeHostName, Address: s.Hostname}) {
				t.Errorf("last address %v, want the hostname", last)
			}
		})
	}
}

func TestExternalCloudKeepsItsAddresses(t *testing.T) {
	s := Settings{Name: "n", ExternalCloud: true, NodeIPs: addrs("10.0.0.2")}
	n := s.Initial()
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != taintUninitialized {
		t.Errorf("taints %v", n.Spec.Taints)
	}
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "203.0.113.1"}}
	n, _, _ = s.Update(n, observed(), now)
	if len(n.Status.Addresses) != 1 || n.Annotations[annotationProvidedIP] != "10.0.0.2" {
		t.Errorf("addresses %v, annotations %v", n.Status.Addresses, n.Annotations)
	}
	s.ExternalCloud = false
	if n, _, _ = s.Update(n, observed(), now); n.Annotations[annotationProvidedIP] != "" ||
		len(n.Status.Addresses) != 2 {
		t.Errorf("without a cloud: addresses %v, annotations %v", n.Status.Addresses, n.Annotations)
	}
}

// The list is imagegc's. Until there is one, that of before counts.
func TestImages(t *testing.T) {
	before := []v1.ContainerImage{{Names: []string{"old"}, SizeBytes: 1}}
	s := Settings{Name: "n", MaxImages: -1}
	n, _, _ := s.Update(&v1.Node{Status: v1.NodeStatus{Images: before}}, Observed{}, now)
	if !cmp.Equal(n.Status.Images, before) {
		t.Errorf("without a list: %v", n.Status.Images)
	}
	list := &imagegcv1.Images{Images: []*imagegcv1.Images_Image{{Names: []string{"a@b", "a:1"}, SizeBytes: 5}}}
	n, changed, _ := s.Update(n, Observed{Images: list}, now)
	want := []v1.ContainerImage{{Names: []string{"a@b", "a:1"}, SizeBytes: 5}}
	if !changed || !cmp.Equal(n.Status.Images, want) {
		t.Errorf("with a list: %v", n.Status.Images)
	}
	if n, _, _ = s.Update(n, Observed{Images: &imagegcv1.Images{}}, now); len(n.Status.Images) > 0 {
		t.Errorf("with an empty one: %v", n.Status.Images)
	}
}
