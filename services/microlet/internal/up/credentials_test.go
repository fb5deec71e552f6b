package up

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/clientcert"
)

// copyOf copies a kubeconfig to nodestatus' folder, and returns what is there by its name.
func copyOf(t *testing.T, kubeconfig string, change func(dir string, c *credentials)) map[string]string {
	t.Helper()
	id, err := role.Get(role.NodeStatus)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := credentials{source: filepath.Join(dir, "kubelet.conf"), dir: filepath.Join(dir, "own"), id: id}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(dir, &c)
	}
	if err := os.WriteFile(c.source, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.sync(); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	names, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		data, err := os.ReadFile(filepath.Join(c.dir, n.Name()))
		if err != nil {
			t.Fatal(err)
		}
		found[n.Name()] = string(data)
	}
	return found
}

// Users and clusters that the current context does not name are neither read nor given away.
func TestOtherUsersOfTheKubeconfigAreNotCopied(t *testing.T) {
	found := copyOf(t, `apiVersion: v1
kind: Config
clusters:
- {name: c, cluster: {server: "https://192.0.2.1:6443"}}
- {name: d, cluster: {server: "https://192.0.2.2:6443", certificate-authority: /no/such/ca.crt}}
users:
- {name: admin, user: {client-certificate: /no/such/file.crt, client-key: /no/such/file.key}}
- {name: other, user: {token: admins-token}}
- {name: u, user: {token: nodes-token}}
contexts:
- {name: w, context: {cluster: d, user: admin}}
- {name: x, context: {cluster: c, user: u}}
current-context: x
`, nil)
	if len(found) != 1 || strings.Contains(found["kubeconfig"], "admin") ||
		!strings.Contains(found["kubeconfig"], "nodes-token") {
		t.Errorf("copied: %q", found)
	}
}

// The certificate that is requested may be that of another cluster than the one before it.
func TestNoCopyOfACertificateThatIsGone(t *testing.T) {
	kubeconfig := strings.Replace(withCertificate("pki/kubelet-client-current.pem"), "certificate-authority: ca.crt, ", "",
		1)
	for name, updating := range map[string]bool{"gone": false, "between the steps of a renewal": true} {
		t.Run(name, func(t *testing.T) {
			found := copyOf(t, kubeconfig, func(dir string, c *credentials) {
				c.requested = clientcert.Path(filepath.Join(dir, "pki"))
				must := func(err error) {
					if err != nil {
						t.Fatal(err)
					}
				}
				must(os.Mkdir(filepath.Dir(c.requested), 0o755))
				for _, name := range []string{"user-0-client.crt", "user-0-client.key"} {
					must(os.WriteFile(filepath.Join(c.dir, name), []byte("old"), 0o600))
				}
				if updating {
					must(os.WriteFile(clientcert.Next(c.requested), []byte("new"), 0o600))
				}
			})
			want := map[bool]string{true: "new"}[updating]
			if found["user-0-client.crt"] != want || found["user-0-client.key"] != want {
				t.Errorf("copied: %q", found)
			}
		})
	}
}

// nodestatus signs in with the certificate that is renewed, as podsync does.
func TestTheRenewedCertificateIsCopied(t *testing.T) {
	ended, key := newPair(t, "n", -time.Minute)
	kubeconfig, err := clientcmd.Write(*embedded(ended, key))
	if err != nil {
		t.Fatal(err)
	}
	cert, key := newPair(t, "n", time.Minute)
	found := copyOf(t, string(kubeconfig), func(dir string, c *credentials) {
		c.certDir = dir
		if err := os.WriteFile(clientcert.Path(dir), append(cert, key...), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if !strings.HasPrefix(found["user-0-client.crt"], string(cert)) {
		t.Errorf("copied: %q", found)
	}
	if strings.Contains(found["kubeconfig"], "client-certificate-data") {
		t.Errorf("the copy contains the certificate that has ended:\n%s", found["kubeconfig"])
	}
}
