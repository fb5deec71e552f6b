package pki

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

var now = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	in := Input{
		Dir:       dir,
		Server:    "https://10.210.0.1:6443",
		ServerIPs: []net.IP{net.IPv4(10, 210, 0, 1), net.IPv4(10, 211, 0, 1)},
		Cluster:   "rig-a",
		NodeName:  "rig-a",
	}
	if err := Write(in, now); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(read(CA))

	for _, host := range []string{"10.210.0.1", "10.211.0.1", "127.0.0.1", "kubernetes.default.svc"} {
		_, err := parse(t, read(APIServer+".crt")).Verify(x509.VerifyOptions{
			Roots:       roots,
			DNSName:     host,
			CurrentTime: now,
		})
		if err != nil {
			t.Errorf("the API server's certificate does not hold for %s: %v", host, err)
		}
	}

	client := x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	config, err := clientcmd.LoadFromFile(Kubeconfig(dir, Node))
	if err != nil {
		t.Fatal(err)
	}
	user, ok := config.AuthInfos["system:node:rig-a"]
	if !ok {
		t.Fatalf("no user system:node:rig-a in %v", config.AuthInfos)
	}
	node := parse(t, user.ClientCertificateData)
	if _, err := node.Verify(client); err != nil {
		t.Errorf("the node's certificate: %v", err)
	}
	if diff := cmp.Diff([]string{"system:nodes"}, node.Subject.Organization); diff != "" {
		t.Errorf("the node's groups (-want +got):\n%s", diff)
	}
	if got := config.Clusters["rig-a"].Server; got != in.Server {
		t.Errorf("server %q, want %q", got, in.Server)
	}
	// Who may assert any user's name must not be trusted as a user.
	if _, err := parse(t, read(FrontProxy+".crt")).Verify(client); err == nil {
		t.Error("the front proxy's certificate is accepted as a user's")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600 (%v)", e.Name(), info.Mode().Perm(), err)
		}
	}
}

func TestIssueRefusesEmptyRequests(t *testing.T) {
	ca, err := NewAuthority("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []Request{{Client: true}, {CommonName: "no-usage"}} {
		if _, err := ca.Issue(req, now); err == nil {
			t.Errorf("%+v was signed", req)
		}
	}
}
