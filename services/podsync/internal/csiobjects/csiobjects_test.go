package csiobjects

import (
	"errors"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestADriverThatTheWatchDoesNotKnowIsAskedFor(t *testing.T) {
	client := fake.NewClientset(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "asked"}})
	factory := informers.NewSharedInformerFactory(client, 0)
	drivers := factory.Storage().V1().CSIDrivers()
	watched := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}
	if err := drivers.Informer().GetStore().Add(watched); err != nil {
		t.Fatal(err)
	}
	r := &Reader{Client: client, Lister: drivers.Lister()}
	for _, name := range []string{"watched", "asked"} {
		if found, err := r.CSIDriver(t.Context(), name); err != nil || found == nil || found.Name != name {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	if found, err := r.CSIDriver(t.Context(), "none"); found != nil || err != nil {
		t.Errorf("a driver without an object: %v, %v", found, err)
	}
	r.Client = nil
	if _, err := r.CSIDriver(t.Context(), "watched"); !errors.Is(err, errStandalone) {
		t.Errorf("without an API server: %v", err)
	}
	if _, err := r.VolumeAttachment(t.Context(), "a"); !errors.Is(err, errStandalone) {
		t.Errorf("an attachment without an API server: %v", err)
	}
}
