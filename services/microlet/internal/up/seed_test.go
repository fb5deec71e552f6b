package up

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// TestSeedClientCertificate: what "kubeadm init" puts into the kubeconfig is where it looks for a certificate that is
// renewed.
func TestSeedClientCertificate(t *testing.T) {
	newPair := func(age time.Duration) (cert, key []byte) {
		t.Helper()
		// It begins an hour ago.
		options := certutil.SelfSignedCertKeyOptions{Host: "n", MaxAge: time.Hour + age}
		cert, key, err := certutil.GenerateSelfSignedCertKeyWithOptions(options)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	cert, key := newPair(time.Hour)
	_, otherKey := newPair(time.Hour)
	for name, test := range map[string]struct {
		user   clientcmdapi.AuthInfo
		rotate bool
		there  time.Duration // how long a certificate that is there lives on; 0: there is none
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
			user: clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, rotate: true, there: time.Hour,
			want: true, stays: true,
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
			if err := clientcmd.WriteToFile(clientcmdapi.Config{
				AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": &test.user},
				Contexts:       map[string]*clientcmdapi.Context{"x": {AuthInfo: "u"}},
				CurrentContext: "x",
			}, c.Kubelet.Node.Kubeconfig); err != nil {
				t.Fatal(err)
			}
			link := clientcert.Path(c.Kubelet.Node.CertDir)
			if test.there != 0 {
				oldCert, oldKey := newPair(test.there)
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
