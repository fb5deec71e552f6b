package images

import (
	"net/http/httptest"
	"os"
	"os/exec"
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
	cat, err := exec.LookPath("cat") // a linked program of any machine, in the place of iptables
	if err != nil {
		t.Fatal(err)
	}
	dir, err := BuildKubeadm(t.Context(), cache, "v1.2.3", cat, programs)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := BuildKubeadm(t.Context(), cache, "v1.2.3", cat, programs); err != nil || again != dir {
		t.Errorf("second time: %q, %v, want %q from the cache", again, err, dir)
	}
	if other, err := BuildKubeadm(t.Context(), cache, "v1.2.4", cat, programs); err != nil || other == dir {
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
		"kube-scheduler:v1.2.3": "kube-scheduler", "etcd:" + etcdVersion: "etcd", "kube-proxy:v1.2.3": kubeProxy,
		"coredns/coredns:" + coreDNSVersion: coreDNS,
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
		want := 1
		if program == kubeProxy {
			want = 2 // what it calls, and itself
		}
		if layers, err := img.Layers(); err != nil || len(layers) != want {
			t.Errorf("%s has %d layers, %v, want %d", image, len(layers), err, want)
		}
	}
}
