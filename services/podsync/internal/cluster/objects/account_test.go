package objects

import (
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestAccount: it is read again each time, and asked for again while the apiserver does not know of the pod.
func TestAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web", UID: "u",
		}})
		asked := 0
		client.PrependReactor("get", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
			if asked++; asked == 1 {
				return true, nil, apierrors.NewForbidden(v1.Resource("serviceaccounts"), "web", errors.New("no pod"))
			}
			return false, nil, nil
		})
		tokens := NewTokens(client, Options{})
		for want := 2; want < 4; want++ {
			if got, err := tokens.Account(t.Context(), "ns", "web"); err != nil || got.UID != "u" || asked != want {
				t.Errorf("got %v, %v after %d requests, want %d", got, err, asked, want)
			}
		}
		if _, err := NewTokens(nil, Options{}).Account(t.Context(), "ns", "web"); err == nil {
			t.Error("a node without an apiserver has an account")
		}
	})
}
