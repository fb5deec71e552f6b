package csinode

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

func theNode() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", UID: "u", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"other": "kept"},
	}}
}

func info(id string, most int64, topology map[string]string) *csi.NodeGetInfoResponse {
	return &csi.NodeGetInfoResponse{
		NodeId: id, MaxVolumesPerNode: most, AccessibleTopology: &csi.Topology{Segments: topology},
	}
}

func read(t *testing.T, c *fake.Clientset) *storagev1.CSINode {
	t.Helper()
	csiNode, err := c.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return csiNode
}

// nodestatus writes into the Node what is published, unless it is down.
type nodestatus struct {
	node      *v1.Node
	down      bool
	published *podsyncv1.CSIDrivers
}

func (s *nodestatus) Node() *v1.Node { return s.node }

func (s *nodestatus) Until(ctx context.Context, wanted func(*v1.Node) bool) error {
	if wanted(s.node) {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s *nodestatus) publish(m *podsyncv1.CSIDrivers) {
	s.published = m
	if s.down {
		return
	}
	ids := map[string]string{}
	for _, d := range m.GetDrivers() {
		ids[d.GetName()] = d.GetNodeId()
		maps.Copy(s.node.Labels, d.GetTopology())
	}
	text, _ := json.Marshal(ids)
	s.node.Annotations[annotationNodeID] = string(text)
}

func newNode(c *fake.Clientset, s *nodestatus) *Node {
	return New(Options{Client: c, Name: "n", Object: s, Publish: s.publish})
}

func TestDriversComeAndGo(t *testing.T) {
	c, s := fake.NewClientset(theNode()), &nodestatus{node: theNode()}
	n := newNode(c, s)
	if err := n.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	empty := read(t, c)
	if len(empty.Spec.Drivers) != 0 || empty.OwnerReferences[0].UID != "u" ||
		!strings.HasPrefix(empty.Annotations[annotationMigrated], "kubernetes.io/aws-ebs,") {
		t.Errorf("of a node without drivers: %+v", empty)
	}
	topology := map[string]string{"zone": "a", "rack": "7"}
	if err := errors.Join(n.Registered(t.Context(), "d1", info("one", 1<<40, topology)),
		n.Registered(t.Context(), "d2", info("two", 0, nil))); err != nil {
		t.Fatal(err)
	}
	want := &podsyncv1.CSIDrivers{Drivers: []*podsyncv1.CSIDrivers_Driver{
		{Name: "d1", NodeId: "one", Topology: topology}, {Name: "d2", NodeId: "two"},
	}}
	if !proto.Equal(s.published, want) {
		t.Errorf("published: %v", s.published)
	}
	d := read(t, c).Spec.Drivers
	if len(d) != 2 || d[0].NodeID != "one" || *d[0].Allocatable.Count != 1<<31-1 || d[1].Allocatable != nil ||
		!slices.Equal(d[0].TopologyKeys, []string{"rack", "zone"}) {
		t.Errorf("drivers: %+v", d)
	}
	c.ClearActions()
	if err := n.Registered(t.Context(), "d1", info("one", 1<<40, topology)); err != nil {
		t.Fatal(err)
	}
	for _, a := range c.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("what is so already is written: %v", a)
		}
	}
	n.Removed(t.Context(), "d1")
	n.Removed(t.Context(), "d2")
	if d := read(t, c).Spec.Drivers; len(d) != 0 {
		t.Errorf("after the drivers: %+v", d)
	}
	want = &podsyncv1.CSIDrivers{Drivers: []*podsyncv1.CSIDrivers_Driver{{Name: "d1"}, {Name: "d2"}}}
	if !proto.Equal(s.published, want) {
		t.Errorf("published after the drivers: %v", s.published)
	}
}

func TestDriversThatSayWhatCannotBe(t *testing.T) {
	c, s := fake.NewClientset(theNode()), &nodestatus{node: theNode()}
	n := newNode(c, s)
	err := n.Registered(t.Context(), "d", info("one", 0, map[string]string{"zone": "b"}))
	if err == nil || !strings.Contains(err.Error(), `driver reported "zone":"b" but existing label is "zone":"a"`) {
		t.Errorf("another zone: %v", err)
	}
	if err := n.Registered(t.Context(), "d", info("", 0, nil)); err == nil {
		t.Error("a driver may leave the node without a name")
	}
	if s.published != nil {
		t.Errorf("published: %v", s.published)
	}
	if err := New(Options{Name: "n"}).Registered(t.Context(), "d", info("one", 0, nil)); err != nil {
		t.Errorf("without an API server: %v", err)
	}
}

// The scheduler must not find a driver in the CSINode whose topology the Node does not show yet.
func TestTheNodeIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fake.NewClientset(theNode()), &nodestatus{node: theNode(), down: true}
		n := newNode(c, s)
		if err := n.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Registered(t.Context(), "d", info("one", 0, nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while nodestatus is down: %v", err)
		}
		if d := read(t, c).Spec.Drivers; len(d) != 0 {
			t.Errorf("drivers while nodestatus is down: %+v", d)
		}
		s.down = false
		if err := n.Registered(t.Context(), "d", info("one", 0, nil)); err != nil {
			t.Fatal(err)
		}
		if d := read(t, c).Spec.Drivers; len(d) != 1 {
			t.Errorf("drivers: %+v", d)
		}
	})
}

func TestChangesOfOthersAreKept(t *testing.T) {
	c, s := fake.NewClientset(theNode()), &nodestatus{node: theNode()}
	conflicts := 0
	c.PrependReactor("update", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		return conflicts <= 2, nil, apierrors.NewConflict(storagev1.Resource("csinodes"), "n", errors.New("changed"))
	})
	n := newNode(c, s)
	if err := n.Registered(t.Context(), "d", info("one", 0, nil)); err != nil {
		t.Fatal(err)
	}
	conflicts = -10
	if err := n.Registered(t.Context(), "e", info("one", 0, nil)); !apierrors.IsConflict(err) {
		t.Errorf("conflicts without an end: %v", err)
	}
}

func TestRunWaitsForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset()
		n := newNode(c, &nodestatus{node: theNode()})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		time.Sleep(3 * time.Second)
		if err := c.Tracker().Add(theNode()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		read(t, c)
	})
}
