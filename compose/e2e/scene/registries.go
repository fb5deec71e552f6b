package scene

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/microlet/microlet/compose/rig"
)

// RunRegistry runs a registry beside that of the rig until the test ends, and returns its address. The runtime knows
// that it speaks HTTP. Each request goes through around, which may pass it on.
func (s *Scene) RunRegistry(around func(http.ResponseWriter, *http.Request, http.Handler)) (host string) {
	s.T.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { around(w, q, inner) }))
	s.T.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	hosts := filepath.Join(s.Dir(), "etc/containerd/certs.d", host)
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = os.RemoveAll(hosts) })
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"),
		fmt.Appendf(nil, "server = %q\n", server.URL), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return host
}

// PushImage makes an image that no other test has, and returns its name: the pause image and a layer of random bytes.
func (s *Scene) PushImage(host, repository string, bytes int64, options ...remote.Option) string {
	s.T.Helper()
	transport := &http.Transport{} // no proxy of the environment
	defer transport.CloseIdleConnections()
	_, path, _ := strings.Cut(rig.PauseImage, "/")
	from, err := name.NewTag(s.Registry()+"/"+path, name.Insecure)
	if err != nil {
		s.T.Fatal(err)
	}
	image, err := remote.Image(from, remote.WithTransport(transport))
	if err != nil {
		s.T.Fatal(err)
	}
	var layer v1.Layer
	if layer, err = random.Layer(bytes, types.DockerLayer); err == nil {
		image, err = mutate.AppendLayers(image, layer)
	}
	if err != nil {
		s.T.Fatal(err)
	}
	to, err := name.NewTag(host+"/"+repository+":1", name.Insecure)
	if err != nil {
		s.T.Fatal(err)
	}
	if err := remote.Write(to, image, append(options, remote.WithTransport(transport))...); err != nil {
		s.T.Fatal(err)
	}
	return to.Name()
}
