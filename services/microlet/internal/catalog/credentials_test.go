package catalog

import (
	"testing"

	"github.com/microlet/microlet/proto/role"
)

// TestCredentials: a service checks the kubeconfigs if it calls the API server.
func TestCredentials(t *testing.T) {
	for _, s := range Services() {
		id, err := role.Get(s.Role)
		if err != nil {
			t.Fatal(err)
		}
		if checks := s.Credentials != nil; checks != id.APICredentials {
			t.Errorf("%s checks kubeconfigs: %v, and has credentials of the API: %v", s.Role, checks, id.APICredentials)
		}
	}
}
