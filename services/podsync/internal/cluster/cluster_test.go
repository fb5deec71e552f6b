package cluster

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// noWorkers have no pod to wake.
type noWorkers struct{}

func (noWorkers) Refresh(types.UID, string) {}

func TestRuntimeClassesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubeletconfig.Config{}
		k.Node.Kubeconfig = "some"
		client := fake.NewClientset(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "strict"}, Handler: "runsc"})
		c, err := New(client, k, noWorkers{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.watch(ctx) }()
		synctest.Wait()
		if handler := c.RuntimeClasses.Known(new("strict")); handler != "runsc" {
			t.Errorf("the handler is %q", handler)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWithoutAnApiserverNothingIsAskedFor(t *testing.T) {
	client := fake.NewClientset()
	c, err := New(client, &kubeletconfig.Config{}, noWorkers{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{
		ImagePullSecrets: []v1.LocalObjectReference{{Name: "secret"}},
	}}
	if _, missing, err := c.Objects.PullSecrets(t.Context(), p); err != nil || len(missing) != 1 {
		t.Errorf("missing %q, %v", missing, err)
	}
	if asked := client.Actions(); len(asked) != 0 {
		t.Errorf("the apiserver is asked: %v", asked)
	}
}
