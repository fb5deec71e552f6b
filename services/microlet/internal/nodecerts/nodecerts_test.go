package nodecerts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

var (
	soon  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	later = time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		user  *clientcmdapi.AuthInfo // nil: standalone
		setup func(dir string, k *kubeletconfig.Config)
		want  []string
	}{
		{name: "standalone, no port"},
		{name: "a token", user: &clientcmdapi.AuthInfo{Token: "t"}},
		{name: "a file", user: &clientcmdapi.AuthInfo{ClientCertificate: "soon.pem", ClientKey: "soon.pem"},
			want: []string{"client soon.pem 2030"}},
		{name: "a file that is not there", user: &clientcmdapi.AuthInfo{ClientCertificate: "gone", ClientKey: "gone"},
			want: []string{"client gone there is none yet"}},
		{name: "in the kubeconfig", user: &clientcmdapi.AuthInfo{
			ClientCertificateData: pair(t, soon), ClientKeyData: pair(t, soon),
		}, want: []string{"client kubeconfig 2030"}},
		{name: "no certificate", user: &clientcmdapi.AuthInfo{ClientCertificate: "garbage", ClientKey: "garbage"},
			want: []string{"client garbage data does not contain any valid RSA or ECDSA certificates"}},
		{name: "the configured one", setup: func(dir string, k *kubeletconfig.Config) {
			k.Kubelet.TLSCertFile, *k.Kubelet.EnableServer = filepath.Join(dir, "later.pem"), true
		}, want: []string{"serving later.pem 2031"}},
		{name: "no port for the configured one", setup: func(dir string, k *kubeletconfig.Config) {
			k.Kubelet.TLSCertFile = filepath.Join(dir, "later.pem")
		}},
		{name: "a requested one that is not signed", user: &clientcmdapi.AuthInfo{Token: "t"},
			setup: func(_ string, k *kubeletconfig.Config) {
				k.Kubelet.ServerTLSBootstrap, *k.Kubelet.EnableServer = true, true
			}, want: []string{"serving kubelet-server-current.pem there is none yet"}},
		{name: "the configured one until then", user: &clientcmdapi.AuthInfo{Token: "t"},
			setup: func(dir string, k *kubeletconfig.Config) {
				k.Kubelet.ServerTLSBootstrap, *k.Kubelet.EnableServer = true, true
				k.Kubelet.TLSCertFile = filepath.Join(dir, "later.pem")
			}, want: []string{"serving later.pem 2031"}},
		{name: "the requested one", user: &clientcmdapi.AuthInfo{Token: "t"},
			setup: func(dir string, k *kubeletconfig.Config) {
				k.Kubelet.ServerTLSBootstrap, *k.Kubelet.EnableServer = true, true
				k.Kubelet.TLSCertFile = filepath.Join(dir, "later.pem")
				write(t, k.ServingPair(), pair(t, soon))
			}, want: []string{"serving kubelet-server-current.pem 2030"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, data := range map[string][]byte{
				"soon.pem": pair(t, soon), "later.pem": pair(t, later), "garbage": []byte("garbage"),
			} {
				write(t, filepath.Join(dir, name), data)
			}
			k := &kubeletconfig.Config{Kubelet: kubeletconfig.Default()}
			k.Node.CertDir, *k.Kubelet.EnableServer = dir, false
			if c.user != nil {
				k.Node.Kubeconfig = filepath.Join(dir, "kubeconfig")
				config := clientcmdapi.NewConfig()
				config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
				config.AuthInfos["u"] = c.user
				config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
				config.CurrentContext = "x"
				if err := clientcmd.WriteToFile(*config, k.Node.Kubeconfig); err != nil {
					t.Fatal(err)
				}
			}
			if c.setup != nil {
				c.setup(dir, k)
			}
			var got []string
			for _, n := range Read(k) {
				what := n.NotAfter.Format("2006")
				if n.Err != nil {
					what = n.Err.Error()
				}
				got = append(got, fmt.Sprintf("%s %s %s", n.Name, filepath.Base(n.Path), what))
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// pair is a self-signed certificate that ends then, and its key.
func pair(t *testing.T, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "n1"}, NotBefore: end.Add(-time.Hour), NotAfter: end,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
