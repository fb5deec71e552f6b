package registration

import (
	"context"
	"errors"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// manager records the plugins.
type manager struct {
	plugins []string
	err     error
}

func (m *manager) Register(_ context.Context, resource, endpoint string, versions []string) error {
	m.plugins = append(m.plugins, resource+" "+endpoint+" "+strings.Join(versions, ","))
	return m.err
}

func TestRegister(t *testing.T) {
	m := &manager{}
	s := New("/plugins", m)
	request := &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "a.sock", ResourceName: "example.com/a"}
	if _, err := s.Register(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	m.err = errors.New("no such plugin")
	request.Endpoint = "/etc/a.sock"
	if _, err := s.Register(t.Context(), request); err == nil || err.Error() != "no such plugin" {
		t.Errorf("error is %v", err)
	}
	// As with the kubelet, an absolute endpoint is one of the folder.
	want := []string{"example.com/a /plugins/a.sock v1beta1", "example.com/a /plugins/etc/a.sock v1beta1"}
	if strings.Join(m.plugins, ";") != strings.Join(want, ";") {
		t.Errorf("plugins are %q, want %q", m.plugins, want)
	}
}
