package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/services/internal/clientcert"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// node is a node's files and the Events about it.
type node struct {
	o       Options
	metrics *prometheus.Registry

	mu     sync.Mutex
	events []string
}

func newNode(t *testing.T, server *apiserver) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{metrics: prometheus.NewRegistry()}
	k := &kubeletconfig.Config{}
	k.Node.CertDir = filepath.Join(dir, "pki")
	k.Node.Kubeconfig, k.Node.BootstrapKubeconfig = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "bootstrap")
	k.Kubelet.RotateCertificates, k.Kubelet.ContentType = true, "application/json"
	link := clientcert.Path(k.Node.CertDir)
	server.kubeconfig(t, k.Node.Kubeconfig, &clientcmdapi.AuthInfo{ClientCertificate: link, ClientKey: link})
	server.kubeconfig(t, k.Node.BootstrapKubeconfig, &clientcmdapi.AuthInfo{Token: bootstrapToken})
	n.o = Options{
		Kubelet: k, NodeName: "n1", Log: slog.New(slog.DiscardHandler), Metrics: n.metrics,
		Eventf: func(_, reason, format string, args ...any) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, reason+": "+fmt.Sprintf(format, args...))
		},
	}
	return n
}

// run runs a manager until the test ends or stop is called.
func (n *node) run(t *testing.T) (stop func()) {
	t.Helper()
	n.metrics = prometheus.NewRegistry()
	n.o.Metrics = n.metrics
	m, err := NewClient(n.o)
	if err != nil || m == nil {
		t.Fatalf("manager %v, %v", m, err)
	}
	return start(t, m)
}

func start(t *testing.T, m *Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// current is the client certificate that is on the disk, nil if there is none.
func (n *node) current() *x509.Certificate { return leaf(clientcert.Path(n.o.Kubelet.Node.CertDir)) }

func leaf(link string) *x509.Certificate {
	pair, err := tls.LoadX509KeyPair(link, link)
	if err != nil {
		return nil
	}
	return pair.Leaf
}

func (n *node) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1200 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s did not come", what)
}

func (n *node) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// TestTheFirstCertificateIsRequestedAndRenewed: the first with the token, the next ones with the certificate itself.
func TestTheFirstCertificateIsRequestedAndRenewed(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(15*time.Second, false) // it is renewed at least 1.5 s before its end
	n := newNode(t, server)
	stop := n.run(t)
	n.await(t, "the first certificate", func() bool { return n.current() != nil })
	first := n.current()
	if first.Subject.CommonName != "system:node:n1" || strings.Join(first.Subject.Organization, ",") != "system:nodes" {
		t.Errorf("the certificate is of %s", first.Subject)
	}
	n.await(t, "a renewal", func() bool { return len(server.seen()) >= 2 && !n.current().Equal(first) })
	for i, who := range server.seen() {
		want := "system:node:n1"
		if i == 0 {
			want = "bootstrap"
		}
		if who != want {
			t.Errorf("request %d was of %s, want %s", i, who, want)
		}
	}
	// The end of the manager may cut off a request, which counts as an error.
	if got := n.metric(t, "kubelet_certificate_manager_client_expiration_renew_errors"); got != 0 {
		t.Errorf("%v errors", got)
	}
	stop()

	// What the kubelet finds: a link to a file with a time in its name, both root's alone.
	dir := n.o.Kubelet.Node.CertDir
	target, err := os.Readlink(clientcert.Path(dir))
	if err != nil || !strings.HasPrefix(target, filepath.Join(dir, "kubelet-client-20")) {
		t.Errorf("the link leads to %s, %v", target, err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the pair is %v, %v", info.Mode(), err)
	}
}

// TestARefusedRequest: a request that is denied, or that has an expired token, is made again. The token is read again.
func TestARefusedRequest(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(time.Hour, true)
	n := newNode(t, server)
	server.kubeconfig(t, n.o.Kubelet.Node.BootstrapKubeconfig, &clientcmdapi.AuthInfo{Token: "expired"})
	n.run(t)
	const errs = "kubelet_certificate_manager_client_expiration_renew_errors"
	n.await(t, "an error about the token", func() bool { return n.metric(t, errs) >= 1 })
	if ttl := n.metric(t, "kubelet_certificate_manager_client_ttl_seconds"); !math.IsInf(ttl, 1) {
		t.Errorf("without a certificate it ends in %v s", ttl)
	}
	server.kubeconfig(t, n.o.Kubelet.Node.BootstrapKubeconfig, &clientcmdapi.AuthInfo{Token: bootstrapToken})
	n.await(t, "a denied request", func() bool { return len(server.seen()) >= 1 })
	server.set(time.Hour, false)
	n.await(t, "a certificate", func() bool { return n.current() != nil })
}

// TestACutOffReplacement: the link is missing after a crash between the two steps of its replacement.
func TestACutOffReplacement(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(time.Hour, false)
	n := newNode(t, server)
	stop := n.run(t)
	n.await(t, "a certificate", func() bool { return n.current() != nil })
	stop()
	first := n.current()
	link := clientcert.Path(n.o.Kubelet.Node.CertDir)
	if err := os.Rename(link, filepath.Join(filepath.Dir(link), "kubelet-client-updated.pem")); err != nil {
		t.Fatal(err)
	}
	n.run(t)
	n.await(t, "the link", func() bool { return n.current() != nil })
	if !n.current().Equal(first) || len(server.seen()) != 1 {
		t.Errorf("a new certificate was requested: %v", server.seen())
	}
	n.await(t, "the time that is left", func() bool {
		left := n.metric(t, "kubelet_certificate_manager_client_ttl_seconds")
		return left > 3500 && left <= 3600
	})
}

// TestARenewalThatFails is reported before the certificate ends.
func TestARenewalThatFails(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(20*time.Second, false)
	n := newNode(t, server)
	stop := n.run(t)
	n.await(t, "a certificate", func() bool { return n.current() != nil })
	stop()
	server.set(time.Hour, true)
	time.Sleep(time.Until(n.current().NotAfter.Add(-1500 * time.Millisecond)))
	n.run(t)
	n.await(t, "an Event", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.events) == 1 && strings.HasPrefix(n.events[0], "ClientCertificateExpires: ")
	})
}

// TestAStrangersFile in the link's place does not end podsync, and the node goes on when it is gone.
func TestAStrangersFile(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(time.Hour, false)
	n := newNode(t, server)
	link := clientcert.Path(n.o.Kubelet.Node.CertDir)
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(link, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run(t)
	time.Sleep(500 * time.Millisecond)
	if data, err := os.ReadFile(link); err != nil || string(data) != "garbage" || len(server.seen()) != 0 {
		t.Fatalf("a stranger's file became %q, %v, and %v asked", data, err, server.seen())
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	n.await(t, "a certificate", func() bool { return n.current() != nil })
}

// TestOthersCredentials are not renewed.
func TestOthersCredentials(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	n := newNode(t, server)
	server.kubeconfig(t, n.o.Kubelet.Node.Kubeconfig, &clientcmdapi.AuthInfo{Token: "t"})
	if m, err := NewClient(n.o); m != nil || err != nil {
		t.Errorf("manager %v, %v", m, err)
	}
	n.o.Kubelet.Node.Kubeconfig = ""
	if m, err := NewClient(n.o); m != nil || err != nil {
		t.Errorf("standalone: manager %v, %v", m, err)
	}
}

func (s *apiserver) kubeconfig(t *testing.T, path string, user *clientcmdapi.AuthInfo) {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.url, CertificateAuthorityData: s.caPEM}
	config.AuthInfos["u"] = user
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
}
