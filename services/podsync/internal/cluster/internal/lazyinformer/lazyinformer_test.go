package lazyinformer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/microlet/microlet/services/podsync/internal/cluster/informer"
)

// run returns the informer of bundles, which runs as long as the test, and the bundles that it knows.
func run(t *testing.T, client *fake.Clientset) (i *Informer, known func() int) {
	t.Helper()
	bundles := informer.New(client, client.CertificatesV1().ClusterTrustBundles(), &certificatesv1.ClusterTrustBundle{},
		fields.Everything())
	i, err := New(bundles, cache.ResourceEventHandlerFuncs{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return i, func() int { return len(bundles.GetStore().List()) }
}

func TestNothingIsWatchedBeforeItIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		i, known := run(t, client)
		time.Sleep(time.Hour)
		if asked := client.Actions(); len(asked) != 0 {
			t.Errorf("asked for %v", asked)
		}
		if err := i.Synced(t.Context()); err != nil || known() != 1 {
			t.Errorf("%d are known, %v", known(), err)
		}
	})
}

func TestAnAPIServerThatRefusesIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no such resource")
		})
		client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, nil, errors.New("no such resource")
		})
		i, _ := run(t, client)
		begun := time.Now()
		err := i.Synced(t.Context())
		if err == nil || !strings.Contains(err.Error(), "informer has not yet synced: ") ||
			!strings.Contains(err.Error(), "no such resource") || time.Since(begun) != firstList {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
	})
}
