//go:build long

package identity

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// taintUninitialized keeps pods away until a cloud controller manager has seen the node.
const taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// TestCloudControllerManager: a node of an external cloud registers with the taint. The test acts as the cloud
// controller manager. A pod waits for it, and its addresses stay.
func TestCloudControllerManager(t *testing.T) {
	s := scene.New(t)
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	restore := forget(t, s, client)
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, "--cloud-provider=external", "--node-ip=")
	t.Cleanup(restore)
	node := getNode(t, client, s.NodeName())
	if i := slices.IndexFunc(node.Spec.Taints, isUninitialized); i < 0 ||
		node.Spec.Taints[i].Effect != corev1.TaintEffectNoSchedule || node.Spec.Taints[i].Value != "true" {
		t.Fatalf("the node has the taints %v", node.Spec.Taints)
	}
	if a := node.Status.Addresses; len(a) != 1 || a[0].Type != corev1.NodeHostName {
		t.Errorf("before the cloud controller manager, the node has the addresses %v", a)
	}

	given := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
		{Type: corev1.NodeHostName, Address: s.NodeName()},
	}
	initialize(t, client, s.NodeName(), given)
	p := scene.ScriptPod("sees", `test "$HOST_IP" = 192.0.2.7 || exit 1; `+scene.Forever)
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "HOST_IP", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}}}
	s.CreatePods(p)
	s.WaitReady(scene.Patience, "sees")
	at := time.Now()
	scene.Await(t, scene.Patience, "a Lease after the addresses", func() error { return s.LeaseRenewedSince(at) })
	time.Sleep(15 * time.Second) // one update of the status and a half
	if now := getNode(t, client, s.NodeName()); !slices.Equal(now.Status.Addresses, given) ||
		slices.ContainsFunc(now.Spec.Taints, isUninitialized) {
		t.Errorf("the node became %v, with the taints %v", now.Status.Addresses, now.Spec.Taints)
	}
}

func isUninitialized(t corev1.Taint) bool { return t.Key == taintUninitialized }

func getNode(t *testing.T, client kubernetes.Interface, name string) *corev1.Node {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// forget stops the agent and deletes the Node, so that the next agent registers it. The function that it returns does
// so again, and starts the first agent.
func forget(t *testing.T, s *scene.Scene, client kubernetes.Interface) (restore func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	again := func() {
		if err := scene.Shared.StopAgent(ctx); err != nil {
			t.Fatal(err)
		}
		scene.Current.Agent = rig.AgentNone
		err := client.CoreV1().Nodes().Delete(ctx, s.NodeName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	again()
	return func() {
		s.DeleteAllPods()
		again()
		scene.Shared.SwitchTo(t, scene.FirstAgent)
	}
}

// initialize does what a cloud controller manager does with a new node.
func initialize(t *testing.T, client kubernetes.Interface, name string, addresses []corev1.NodeAddress) {
	t.Helper()
	nodes := client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n := getNode(t, client, name)
		n.Status.Addresses = addresses
		n, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, isUninitialized)
		_, err = nodes.Update(t.Context(), n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(fmt.Errorf("initialize the node: %w", err))
	}
}
