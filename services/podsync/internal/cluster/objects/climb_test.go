package objects

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A pod or a claim must not get at another namespace's Secret by a name that climbs out of its own.
func TestANameThatClimbsIsNotAskedFor(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("asked for %s", r.URL)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	s := New(client, Options{Strategy: Get})
	for _, name := range []string{"../../other/secrets/s", "other/s", "..", ".", "a%2fb", "s/../../t", ""} {
		_, secret := s.Secret(t.Context(), "ns", name)
		_, configMap := s.ConfigMap(t.Context(), "ns", name)
		for _, err := range []error{secret, configMap} {
			if err == nil || !strings.Contains(err.Error(), "name") {
				t.Errorf("name %q gives %v", name, err)
			}
		}
	}
}
