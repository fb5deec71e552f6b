package certs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/services/internal/clientcert"
)

// A certificate of another API server than the kubeconfig's would be of no use, and would keep the next start from
// writing the kubeconfig.
func TestABootstrapKubeconfigOfAnotherServerIsRefused(t *testing.T) {
	server, other := newAPIServer(t), newAPIServer(t)
	n := newNode(t, server)
	m, err := n.client()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.bootstrapped(nil); err != nil {
		t.Fatalf("with the same server: %v", err)
	}
	node := &n.o.Kubelet.Node
	other.kubeconfig(t, node.BootstrapKubeconfig, &clientcmdapi.AuthInfo{Token: bootstrapToken})
	_, err = m.bootstrapped(nil)
	if err == nil || !strings.Contains(err.Error(), "restart microlet") || !strings.Contains(err.Error(), other.url) ||
		!strings.Contains(err.Error(), server.url) {
		t.Errorf("with another server: %v", err)
	}
	if err := os.Remove(node.BootstrapKubeconfig); err != nil {
		t.Fatal(err)
	}
	if _, err := m.bootstrapped(nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}

// A kubelet has renewed the certificate that the kubeconfig contains, which has ended meanwhile: the one in --cert-dir
// is used and renewed.
func TestARenewedCertificateIsUsed(t *testing.T) {
	server := newAPIServer(t)
	n := newNode(t, server)
	node := &n.o.Kubelet.Node
	ended, key := server.pair(t, -time.Minute)
	server.kubeconfig(t, node.Kubeconfig, &clientcmdapi.AuthInfo{ClientCertificateData: ended, ClientKeyData: key})
	if m, err := n.client(); err != nil || m != nil {
		t.Fatalf("without a renewed one: %v, %v", m, err)
	}
	renewed, key := server.pair(t, time.Hour)
	link := clientcert.Path(node.CertDir)
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755),
		os.WriteFile(link, append(renewed, key...), 0o600)); err != nil {
		t.Fatal(err)
	}
	m, err := n.client()
	if err != nil || m == nil {
		t.Fatalf("it is not renewed: %v, %v", m, err)
	}
	client, err := m.asNode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("it is not used: %v", err)
	}
}
