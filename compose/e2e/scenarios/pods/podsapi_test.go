package pods

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// askPodsAPI compares what the Pods API says of the pods with what the API server says, and watches one to its end.
func askPodsAPI(s *scene.Scene) {
	s.T.Helper()
	if s.OnMachine() {
		return // the socket is there
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(s.RootDir(), "pods-api", "pods-api.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		s.T.Fatal(err)
	}
	defer conn.Close()
	client := podsv1alpha1.NewPodsClient(conn)
	s.Wait(scene.Patience, "the Pods API to agree with the API server", func(v record.View) error {
		list, err := client.ListPods(s.T.Context(), &podsv1alpha1.ListPodsRequest{})
		if err != nil {
			return err
		}
		here, there := map[string]string{}, map[string]string{}
		for _, data := range list.GetPods() {
			if p := decodePod(s.T, data); p.Namespace == s.Namespace {
				here[p.Name] = describe(p)
			}
		}
		for _, p := range v.Pods(s.Namespace) {
			there[p.Name] = describe(p)
		}
		if len(here) == 0 || !maps.Equal(here, there) {
			return fmt.Errorf("the Pods API has %v, and the API server %v", here, there)
		}
		return nil
	})
	watchToTheEnd(s, client)
}

func describe(p *corev1.Pod) string {
	ready := corev1.ConditionUnknown
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			ready = c.Status
		}
	}
	return fmt.Sprint(p.UID, p.Labels, p.Status.Phase, ready, p.Status.PodIPs)
}

func decodePod(t testing.TB, data []byte) *corev1.Pod {
	t.Helper()
	var p corev1.Pod
	if err := p.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return &p
}

// watchToTheEnd watches a pod whose labels change and that is deleted.
func watchToTheEnd(s *scene.Scene, client podsv1alpha1.PodsClient) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), 2*scene.Patience)
	defer cancel()
	watch, err := client.WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		s.T.Fatal(err)
	}
	const name = "watched"
	until := func(what string, holds func(kind podsv1alpha1.EventType, p *corev1.Pod) bool) {
		s.T.Helper()
		for {
			event, err := watch.Recv()
			if err != nil {
				s.T.Fatalf("the watch waits for %s: %v", what, err)
			}
			if p := decodePod(s.T, event.GetPod()); holds(event.GetType(), p) {
				return
			}
		}
	}
	is := func(p *corev1.Pod) bool { return p.Namespace == s.Namespace && p.Name == name }
	until("the end of the list", func(kind podsv1alpha1.EventType, p *corev1.Pod) bool {
		if is(p) {
			s.T.Error("the pod is there before it is created")
		}
		return kind == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE
	})
	s.CreatePods(scene.ScriptPod(name, scene.Forever))
	until("the pod", func(kind podsv1alpha1.EventType, p *corev1.Pod) bool {
		if is(p) && (kind != podsv1alpha1.EventType_ADDED || p.Status.Phase != corev1.PodPending) {
			s.T.Errorf("the first event of the pod is %s in phase %q", kind, p.Status.Phase)
		}
		return is(p)
	})
	until("the pod to run", func(kind podsv1alpha1.EventType, p *corev1.Pod) bool {
		return is(p) && kind == podsv1alpha1.EventType_MODIFIED && p.Status.Phase == corev1.PodRunning
	})
	s.KubectlPrints("labeled", "label", "pod", name, "seen=yes")
	until("the label", func(kind podsv1alpha1.EventType, p *corev1.Pod) bool {
		return is(p) && kind == podsv1alpha1.EventType_MODIFIED && p.Labels["seen"] == "yes"
	})
	s.KubectlPrints("deleted", "delete", "pod", name, "--grace-period=1")
	terminating := false
	until("the end of the pod", func(kind podsv1alpha1.EventType, p *corev1.Pod) bool {
		terminating = terminating || is(p) && p.DeletionTimestamp != nil
		return is(p) && kind == podsv1alpha1.EventType_DELETED
	})
	if !terminating {
		s.T.Error("the watch has not shown that the pod terminates")
	}
}
