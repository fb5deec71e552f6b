package csiobjects

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

func TestADriverThatTheWatchDoesNotKnowIsAskedFor(t *testing.T) {
	client := fake.NewClientset(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "asked"}})
	drivers := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := drivers.Add(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}); err != nil {
		t.Fatal(err)
	}
	r := &Reader{Client: client, Lister: storagelisters.NewCSIDriverLister(drivers)}
	for _, name := range []string{"watched", "asked"} {
		if found, err := r.CSIDriver(t.Context(), name); err != nil || found == nil || found.Name != name {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	if found, err := r.CSIDriver(t.Context(), "none"); found != nil || err != nil {
		t.Errorf("a driver without an object: %v, %v", found, err)
	}
	if r.Watched("watched") == nil || r.Watched("asked") != nil {
		t.Error("the watch knows another driver than the one that it has sent")
	}
	changed := r.Changed()
	r.Notify()
	<-changed
	if r.Changed() == changed {
		t.Error("the next change closes nothing")
	}
	r.Client = nil
	if _, err := r.CSIDriver(t.Context(), "watched"); !errors.Is(err, errStandalone) {
		t.Errorf("without an API server: %v", err)
	}
	if _, err := r.VolumeAttachment(t.Context(), "a"); !errors.Is(err, errStandalone) {
		t.Errorf("an attachment without an API server: %v", err)
	}
}

// TestA404ThatIsNotTheAPIServers does not say that a driver has no object.
func TestA404ThatIsNotTheAPIServers(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "csidrivers", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(404, "GET", storagev1.Resource("csidrivers"), "d", "a page", 0,
			true)
	})
	drivers := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	r := &Reader{Client: client, Lister: storagelisters.NewCSIDriverLister(drivers)}
	if found, err := r.CSIDriver(t.Context(), "d"); err == nil {
		t.Errorf("the driver is %v", found)
	}
}

// The Node authorizer may not have heard yet of an attachment that was just made.
func TestAnAPIServerThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		began := time.Now()
		client.PrependReactor("get", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
			if time.Since(began) < time.Second {
				return true, nil, apierrors.NewForbidden(storagev1.Resource("volumeattachments"), "a", nil)
			}
			return false, nil, nil
		})
		r := &Reader{Client: client}
		if found, err := r.VolumeAttachment(t.Context(), "a"); err != nil || found.Name != "a" {
			t.Errorf("%v, %v", found, err)
		}
	})
}
