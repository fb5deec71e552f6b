package objects

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// An apiserver that does not know the pod yet is asked again for a moment, and what it refuses in earnest
// is reported.
func TestAnAPIServerThatIsBehind(t *testing.T) {
	forbidden := apierrors.NewForbidden(v1.Resource("secrets"), "a", nil)
	for name, test := range map[string]struct {
		err   error
		lasts time.Duration // of the refusal
		least time.Duration // until the answer
		fails bool
	}{
		"at once":                      {},
		"no relationship for a moment": {err: forbidden, lasts: time.Second, least: time.Second},
		"no pod for a moment": {err: apierrors.NewNotFound(schema.GroupResource{Resource: "pod"}, "p"),
			lasts: time.Second, least: time.Second},
		"no right at all": {err: forbidden, lasts: time.Hour, least: bindingLag - longestPause, fails: true},
		"no service account": {err: apierrors.NewNotFound(v1.Resource("serviceaccounts"), "a"), lasts: time.Hour,
			fails: true},
		"no apiserver": {err: context.DeadlineExceeded, lasts: time.Hour, fails: true},
	} {
		for what, ask := range map[string]func(ctx context.Context, c *fake.Clientset) error{
			"secret": func(ctx context.Context, c *fake.Clientset) error {
				_, err := New(c, Options{Strategy: Get}).Secret(ctx, "ns", "a")
				return err
			},
			"configMap": func(ctx context.Context, c *fake.Clientset) error {
				_, err := New(c, Options{Strategy: Get}).ConfigMap(ctx, "ns", "a")
				return err
			},
			"token": func(ctx context.Context, c *fake.Clientset) error {
				_, err := NewTokens(c, Options{}).Token(ctx, "ns", "a", &authenticationv1.TokenRequest{})
				return err
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				meta := metav1.ObjectMeta{Namespace: "ns", Name: "a"}
				client := fake.NewClientset(&v1.Secret{ObjectMeta: meta}, &v1.ConfigMap{ObjectMeta: meta})
				client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if time.Since(began) < test.lasts {
						return true, nil, test.err
					}
					token := authenticationv1.TokenRequestStatus{Token: "t"}
					return a.GetSubresource() == "token", &authenticationv1.TokenRequest{Status: token}, nil
				})
				err := ask(t.Context(), client)
				if took := time.Since(began); (err != nil) != test.fails || took < test.least ||
					took > test.least+2*longestPause {
					t.Errorf("%s, %s: %v after %v", what, name, err, took)
				}
			})
		}
	}
}
