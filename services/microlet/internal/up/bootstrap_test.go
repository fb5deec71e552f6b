package up

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

const bootstrapFile = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443", certificate-authority: ca.crt, tls-server-name: k}}]
users: [{name: u, user: {token: abcdef.0123456789abcdef}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// TestBootstrap: the kubeconfig is written if its credentials cannot be used, and never says the token.
func TestBootstrap(t *testing.T) {
	for name, test := range map[string]struct {
		kubeconfig  string // nothing if empty
		noBootstrap bool
		written     bool
	}{
		"new node":                     {written: true},
		"garbage":                      {kubeconfig: "garbage", written: true},
		"no credentials":               {kubeconfig: withUser("{}"), written: true},
		"a token of its own":           {kubeconfig: bootstrapFile},
		"the certificate is gone":      {kubeconfig: withCertificate("gone.pem"), written: true},
		"the certificate has ended":    {kubeconfig: withCertificate("ended.pem"), written: true},
		"the certificate is valid":     {kubeconfig: withCertificate("valid.pem")},
		"the key is another's":         {kubeconfig: withCertificate("mixed.pem"), written: true},
		"ended, and the token is gone": {kubeconfig: withCertificate("ended.pem"), noBootstrap: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, data string) string {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
					t.Fatal(err)
				}
				return path
			}
			valid, key, err := certutil.GenerateSelfSignedCertKey("n", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			write("valid.pem", string(valid)+string(key))
			_, other, err := certutil.GenerateSelfSignedCertKey("n", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			write("mixed.pem", string(valid)+string(other))
			ended, key, err := certutil.GenerateSelfSignedCertKeyWithOptions(certutil.SelfSignedCertKeyOptions{
				Host: "n", MaxAge: time.Minute, // from an hour ago
			})
			if err != nil {
				t.Fatal(err)
			}
			write("ended.pem", string(ended)+string(key))
			write("ca.crt", string(valid))
			c := DefaultConfig()
			c.Kubelet = &kubeletconfig.Config{}
			node := &c.Kubelet.Node
			node.CertDir = filepath.Join(dir, "pki")
			node.Kubeconfig = filepath.Join(dir, "etc", "kubelet.conf")
			node.BootstrapKubeconfig = filepath.Join(dir, "bootstrap")
			if !test.noBootstrap {
				write("bootstrap", bootstrapFile)
			}
			if test.kubeconfig != "" {
				node.Kubeconfig = write("kubelet.conf", test.kubeconfig)
			}
			for range 2 { // a start after a start changes nothing
				if err := c.bootstrap(); err != nil {
					t.Fatal(err)
				}
			}
			data, err := os.ReadFile(node.Kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			if !test.written {
				if string(data) != test.kubeconfig {
					t.Errorf("the kubeconfig became\n%s", data)
				}
				return
			}
			if info, err := os.Stat(node.Kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the kubeconfig is %v, %v", info.Mode(), err)
			}
			if strings.Contains(string(data), "token") {
				t.Errorf("the kubeconfig has the token:\n%s", data)
			}
			config, files, err := clientcert.Load(node.Kubeconfig, "")
			if link := clientcert.Path(node.CertDir); err != nil || files == nil || *files != (clientcert.Files{
				Certificate: link, Key: link,
			}) {
				t.Fatalf("the certificate's files are %v, %v", files, err)
			}
			client, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
			if err != nil || client.Host != "https://192.0.2.1:6443" || client.CAFile != filepath.Join(dir, "ca.crt") ||
				client.ServerName != "k" {
				t.Errorf("the client is of %+v, %v", client, err)
			}
		})
	}
}

func withUser(user string) string {
	return strings.Replace(bootstrapFile, "{token: abcdef.0123456789abcdef}", user, 1)
}

func withCertificate(name string) string {
	return withUser("{client-certificate: " + name + ", client-key: " + name + "}")
}

// joining is a node with a bootstrap kubeconfig.
func joining(t *testing.T) (c Config, dir string, write func(name, data string)) {
	t.Helper()
	dir = t.TempDir()
	write = func(name, data string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(data), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("bootstrap", bootstrapFile)
	write("ca.crt", "")
	c = DefaultConfig()
	c.Kubelet = &kubeletconfig.Config{}
	node := &c.Kubelet.Node
	node.CertDir, node.Kubeconfig = filepath.Join(dir, "pki"), filepath.Join(dir, "kubelet.conf")
	node.BootstrapKubeconfig = filepath.Join(dir, "bootstrap")
	return c, dir, write
}

// A renewal that was cut off between its two steps is finished before the kubeconfig is judged.
func TestACutOffRenewalKeepsTheKubeconfig(t *testing.T) {
	c, dir, write := joining(t)
	cert, key := newPair(t, "n", time.Hour)
	write("ca.crt", string(cert))
	write("pki/kubelet-client-1.pem", string(cert)+string(key))
	kubeconfig := strings.Replace(withCertificate("pki/kubelet-client-current.pem"), "192.0.2.1", "192.0.2.99", 1)
	write("kubelet.conf", kubeconfig)
	if err := os.Symlink(filepath.Join(dir, "pki/kubelet-client-1.pem"),
		filepath.Join(dir, "pki/kubelet-client-updated.pem")); err != nil {
		t.Fatal(err)
	}
	if err := c.bootstrap(); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(c.Kubelet.Node.Kubeconfig); err != nil || string(data) != kubeconfig {
		t.Errorf("the kubeconfig, whose certificate is valid, became\n%s (%v)", data, err)
	}
}

// A kubeconfig may be a link, such as from an /etc that does not outlive a boot to /var.
func TestALinkToTheKubeconfigStays(t *testing.T) {
	for name, target := range map[string]string{"to a file": "var/kubelet.conf", "to none": "var/new/kubelet.conf"} {
		t.Run(name, func(t *testing.T) {
			c, dir, write := joining(t)
			write("var/kubelet.conf", withCertificate("gone.pem"))
			if err := os.Symlink(target, c.Kubelet.Node.Kubeconfig); err != nil {
				t.Fatal(err)
			}
			if err := c.bootstrap(); err != nil {
				t.Fatal(err)
			}
			if to, err := os.Readlink(c.Kubelet.Node.Kubeconfig); err != nil || to != target {
				t.Errorf("the link leads to %q, %v", to, err)
			}
			data, err := os.ReadFile(filepath.Join(dir, target))
			if err != nil || !strings.Contains(string(data), clientcert.Path(c.Kubelet.Node.CertDir)) {
				t.Errorf("the file has %q, %v", data, err)
			}
		})
	}
}

// A kubeconfig that is mounted by itself, as into a container, cannot be replaced by a rename.
func TestAMountedKubeconfigIsWritten(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts a file")
	}
	c, dir, write := joining(t)
	write("var/kubelet.conf", withCertificate("gone.pem"))
	write("kubelet.conf", "")
	path, source := c.Kubelet.Node.Kubeconfig, filepath.Join(dir, "var/kubelet.conf")
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	})
	if err := c.bootstrap(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(source)
	if err != nil || !strings.Contains(string(data), clientcert.Path(c.Kubelet.Node.CertDir)) {
		t.Errorf("the file has %q, %v", data, err)
	}
}

func TestAKubeconfigIsNotWrittenFromGarbage(t *testing.T) {
	dir := t.TempDir()
	c := DefaultConfig()
	c.Kubelet = &kubeletconfig.Config{}
	c.Kubelet.Node.Kubeconfig = filepath.Join(dir, "kubelet.conf")
	c.Kubelet.Node.BootstrapKubeconfig = filepath.Join(dir, "bootstrap")
	for _, data := range []string{
		"garbage", strings.Replace(bootstrapFile, "current-context: x", "current-context: y", 1),
	} {
		if err := os.WriteFile(c.Kubelet.Node.BootstrapKubeconfig, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.bootstrap(); err == nil || !strings.Contains(err.Error(), "--bootstrap-kubeconfig=") {
			t.Errorf("error %v of %q", err, data)
		}
		if _, err := os.Stat(c.Kubelet.Node.Kubeconfig); err == nil {
			t.Error("a kubeconfig was written")
		}
	}
}
