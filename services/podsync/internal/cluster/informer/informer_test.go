package informer

import (
	"context"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
)

func service(namespace, name string) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate}}}}
}

func TestWhatIsListedAndWatchedIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(service("a", "listed"), service("b", "other"))
		i := New(client, client.CoreV1().Services(""), &v1.Service{}, fields.Everything())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			i.RunWithContext(ctx)
		}()
		synctest.Wait()
		_, err := client.CoreV1().Services("a").Create(ctx, service("a", "watched"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		lister := corelisters.NewServiceLister(i.GetIndexer()).Services("a")
		for _, name := range []string{"listed", "watched"} {
			if s, err := lister.Get(name); err != nil {
				t.Error(err)
			} else if s.ManagedFields != nil {
				t.Errorf("%s is kept with %v", name, s.ManagedFields)
			}
		}
		if n := len(i.GetIndexer().ListKeys()); n != 3 {
			t.Errorf("%d Services are known", n)
		}
		cancel()
		<-done
	})
}

func TestASelectorIsPartOfBothRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		i := New(client, client.CoreV1().Nodes(), &v1.Node{}, fields.OneTermEqualSelector("metadata.name", "n"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			i.RunWithContext(ctx)
		}()
		synctest.Wait()
		cancel()
		<-done
		var listed, watched string
		for _, a := range client.Actions() {
			switch a := a.(type) {
			case clienttesting.ListAction:
				listed = a.GetListRestrictions().Fields.String()
			case clienttesting.WatchAction:
				watched = a.GetWatchRestrictions().Fields.String()
			}
		}
		if listed != "metadata.name=n" || watched != "metadata.name=n" {
			t.Errorf("listed %q, watched %q", listed, watched)
		}
	})
}
