package apiclient

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

func TestANodeWithoutAnApiserverIsToldSo(t *testing.T) {
	k := &kubeletconfig.Config{}
	client, err := New(k, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
	if err == nil || !strings.Contains(err.Error(), errNoAPIServer.Error()) {
		t.Errorf("got %v", err)
	}
}

func TestTheClientIsAsConfigured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kubeconfig := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}]}`
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{
		"":                 "application/vnd.kubernetes.protobuf",
		"application/json": "application/json",
	} {
		k := &kubeletconfig.Config{Kubelet: kubeletconfigv1.KubeletConfiguration{
			ContentType: asked, KubeAPIQPS: new(int32(7)), KubeAPIBurst: 9,
		}}
		k.Node.Kubeconfig = path
		config, err := restConfig(k)
		if err != nil {
			t.Fatal(err)
		}
		if config.Host != "https://192.0.2.1:6443" || config.ContentType != want || config.QPS != 7 ||
			config.Burst != 9 {
			t.Errorf("contentType %q gives host %s, content %s, %v QPS, burst %d", asked, config.Host,
				config.ContentType, config.QPS, config.Burst)
		}
		if !strings.HasPrefix(config.AcceptContentTypes, want) || config.UserAgent != "microlet-podsync" ||
			config.Dial == nil {
			t.Errorf("contentType %q: accepts %q as %q", asked, config.AcceptContentTypes, config.UserAgent)
		}
	}
	k := &kubeletconfig.Config{}
	k.Node.Kubeconfig = filepath.Join(t.TempDir(), "missing")
	if _, err := New(k, nil); err == nil || !strings.Contains(err.Error(), "--kubeconfig=") {
		t.Errorf("a kubeconfig that is missing: %v", err)
	}
}
