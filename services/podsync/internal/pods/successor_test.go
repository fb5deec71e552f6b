package pods

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/admission"
)

// roomy is a node with room for ten pods, whose object is known.
type roomy struct{}

func (roomy) Node() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("2"), v1.ResourcePods: resource.MustParse("10"),
	}}}
}

func (roomy) Wait(context.Context) error    { return nil }
func (roomy) Refresh(context.Context) error { return nil }

// TestASuccessorOfAForceDeletedPodStartsAtItsEnd, and is not rejected because the other one still stops.
func TestASuccessorOfAForceDeletedPodStartsAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.dispatcher.deps.Admission = admission.NewAdmitter(admission.AdmitterOptions{
			Handlers: []admission.Handler{admission.NodeFit{}}, Nodes: roomy{},
			Running: func(context.Context) (map[types.UID]bool, error) { return nil, nil },
			Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
		n.cri.SetProgram("c", fake.Program{StopDelay: time.Hour})
		defer n.run()()
		n.dispatcher.SourceSynced(api)
		pods := map[types.UID]*v1.Pod{"old": testPod("old"), "next": testPod("next")}
		for _, p := range pods {
			p.Spec.NodeName = "n"
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80, ContainerPort: 80, Protocol: v1.ProtocolTCP}}
		}
		n.apply(pods["old"])
		n.dispatcher.RemovePod("old", api) // only the list shows that it is gone: it has its whole grace period
		n.apply(pods["next"])
		n.wait(20 * time.Second)
		if s := n.status("next"); s.Phase != "" || len(n.alive(pods["old"], "c")) != 1 {
			t.Fatalf("while the other one stops the successor is %s %s %s", s.Phase, s.Reason, s.Message)
		}
		n.wait(20 * time.Second)
		if !n.running("next") || n.workers.Known("old") {
			t.Fatalf("after the end of the other one it is %+v", n.status("next"))
		}
	})
}
