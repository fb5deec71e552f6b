package csinode

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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

func read(t *testing.T, c *fake.Clientset) (*v1.Node, *storagev1.CSINode) {
	t.Helper()
	node, err := c.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	csiNode, err := c.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node, csiNode
}

func TestDriversComeAndGo(t *testing.T) {
	c := fake.NewClientset(theNode())
	n := New(Options{Client: c, Name: "n"})
	if err := n.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, empty := read(t, c)
	if len(empty.Spec.Drivers) != 0 || empty.OwnerReferences[0].UID != "u" ||
		!strings.HasPrefix(empty.Annotations[annotationMigrated], "kubernetes.io/aws-ebs,") {
		t.Errorf("of a node without drivers: %+v", empty)
	}
	topology := map[string]string{"zone": "a", "rack": "7"}
	if err := errors.Join(n.Registered(t.Context(), "d1", info("one", 1<<40, topology)),
		n.Registered(t.Context(), "d2", info("two", 0, nil))); err != nil {
		t.Fatal(err)
	}
	node, csiNode := read(t, c)
	if node.Annotations[annotationNodeID] != `{"d1":"one","d2":"two"}` || node.Annotations["other"] != "kept" {
		t.Errorf("annotations: %v", node.Annotations)
	}
	if !maps.Equal(node.Labels, topology) {
		t.Errorf("labels: %v", node.Labels)
	}
	d := csiNode.Spec.Drivers
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
	node, csiNode = read(t, c)
	if _, ok := node.Annotations[annotationNodeID]; ok || len(csiNode.Spec.Drivers) != 0 {
		t.Errorf("after the drivers: %v, %+v", node.Annotations, csiNode.Spec.Drivers)
	}
	if !maps.Equal(node.Labels, topology) {
		t.Errorf("labels after the drivers: %v", node.Labels)
	}
}

func TestDriversThatSayWhatCannotBe(t *testing.T) {
	c := fake.NewClientset(theNode())
	n := New(Options{Client: c, Name: "n"})
	err := n.Registered(t.Context(), "d", info("one", 0, map[string]string{"zone": "b"}))
	if !errors.Is(err, errCollision) || !strings.Contains(err.Error(),
		`driver reported "zone":"b" but existing label is "zone":"a"`) {
		t.Errorf("another zone: %v", err)
	}
	if err := n.Registered(t.Context(), "d", info("", 0, nil)); err == nil {
		t.Error("a driver may leave the node without a name")
	}
	if err := New(Options{Name: "n"}).Registered(t.Context(), "d", info("one", 0, nil)); err != nil {
		t.Errorf("without an API server: %v", err)
	}
}

func TestChangesOfOthersAreKept(t *testing.T) {
	c := fake.NewClientset(theNode())
	conflicts := 0
	c.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		return conflicts <= 2, nil, apierrors.NewConflict(v1.Resource("nodes"), "n", errors.New("changed"))
	})
	n := New(Options{Client: c, Name: "n"})
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
		n := New(Options{Client: c, Name: "n"})
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
