package up

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// TestSeedClientCertificate: what "kubeadm init" puts into the kubeconfig is where it looks for a certificate that is
// renewed.
func TestSeedClientCertificate(t *testing.T) {
	cert, key := newPair(t, "n", time.Hour)
	_, otherKey := newPair(t, "n", time.Hour)
	for name, test := range map[string]struct {
		user   clientcmdapi.AuthInfo
		rotate bool
		there  time.Duration // how long a certificate that is there lives on; 0: there is none
		of     string        // the node of that certificate, if it is another
		want   bool
		stays  bool
	}{
		"of kubeadm": {
			user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, rotate: true, want: true,
		},
		"nothing is renewed": {user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}},
		"a token":            {user: clientcmdapi.AuthInfo{Token: "t"}, rotate: true},
		"another's key": {
			user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: otherKey}, rotate: true,
		},
		"a newer one is there": {
			user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, rotate: true,
			there: 2 * time.Hour, want: true, stays: true,
		},
		"one that ends sooner is there": {
			user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, rotate: true,
			there: 30 * time.Minute, want: true,
		},
		"another node's is there": {
			user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, rotate: true,
			there: 2 * time.Hour, of: "m", want: true,
		},
		"one that has ended is there": {
			user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, rotate: true,
			there: -time.Minute, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := DefaultConfig()
			c.Kubelet = &kubeletconfig.Config{}
			c.Kubelet.Kubelet.RotateCertificates = test.rotate
			c.Kubelet.Node.Kubeconfig = filepath.Join(dir, "kubelet.conf")
			c.Kubelet.Node.CertDir = filepath.Join(dir, "pki")
			if err := clientcmd.WriteToFile(*kubeconfigOf(&test.user), c.Kubelet.Node.Kubeconfig); err != nil {
				t.Fatal(err)
			}
			link := clientcert.Path(c.Kubelet.Node.CertDir)
			if test.there != 0 {
				oldCert, oldKey := newPair(t, cmp.Or(test.of, "n"), test.there)
				old := filepath.Join(c.Kubelet.Node.CertDir, "kubelet-client-old.pem")
				if err := errors.Join(os.Mkdir(c.Kubelet.Node.CertDir, 0o755),
					os.WriteFile(old, append(oldCert, oldKey...), 0o600), os.Symlink(old, link)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // a start after a start changes nothing
				c.seedClientCertificate()
			}
			data, err := os.ReadFile(link)
			if (err == nil) != test.want {
				t.Fatalf("the certificate is there: %v, want it to be: %v", err, test.want)
			}
			if err == nil && bytes.HasPrefix(data, cert) == test.stays {
				t.Errorf("the certificate is that of the kubeconfig: %v", !test.stays)
			}
			if !test.want && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("error %v", err)
			}
			all, err := filepath.Glob(filepath.Join(c.Kubelet.Node.CertDir, "kubelet-client-2*.pem"))
			if wrote := test.want && !test.stays; err != nil || (len(all) == 1) != wrote {
				t.Errorf("files %v, %v", all, err)
			}
			for _, path := range all {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: %v, %v", path, info, err)
				}
			}
		})
	}
}

// newPair is a client certificate of a node, which began a day ago, and its key.
func newPair(t *testing.T, node string, left time.Duration) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:" + node},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(left),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

func embedded(cert, key []byte) *clientcmdapi.Config {
	return kubeconfigOf(&clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

func kubeconfigOf(user *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	return &clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://192.0.2.1:6443"}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": user},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}
}
