package images

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// TestKubeadmImages: each program is in an image of its own, under the name that kubeadm pulls.
func TestKubeadmImages(t *testing.T) {
	folder := t.TempDir()
	programs := map[string]string{}
	for _, program := range kubeadmPrograms {
		path := filepath.Join(folder, program+"-v1", program)
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		programs[program] = path
	}
	cache := t.TempDir()
	dir, err := BuildKubeadm(cache, "v1.2.3", programs)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := BuildKubeadm(cache, "v1.2.3", programs); err != nil || again != dir {
		t.Errorf("second time: %q, %v, want %q from the cache", again, err, dir)
	}
	if other, err := BuildKubeadm(cache, "v1.2.4", programs); err != nil || other == dir {
		t.Errorf("another version: %q, %v", other, err)
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	if err := Push(t.Context(), dir, host); err != nil {
		t.Fatal(err)
	}
	for image, program := range map[string]string{
		"kube-apiserver:v1.2.3": "kube-apiserver", "kube-controller-manager:v1.2.3": "kube-controller-manager",
		"kube-scheduler:v1.2.3": "kube-scheduler", "etcd:" + etcdVersion: "etcd",
	} {
		ref, err := name.NewTag(host+"/"+image, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		img, err := remote.Image(ref)
		if err != nil {
			t.Errorf("%s: %v", image, err)
			continue
		}
		if config, err := img.ConfigFile(); err != nil || !slices.Equal(config.Config.Entrypoint, []string{program}) {
			t.Errorf("%s: %+v, %v", image, config, err)
		}
	}
}
