package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/microlet/microlet/services/internal/clientcert"
)

// address is the node's.
var address = net.IPv4(192, 0, 2, 1)

// pair returns a certificate that lives for so long, and its key.
func (a *apiserver) pair(t *testing.T, life time.Duration) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: subject("n1"), IPAddresses: []net.IP{address}}, private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	a.set(life, false)
	return a.sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// replace puts another certificate in the place of a link's, as a backup that is restored does.
func replace(t *testing.T, server *apiserver, link string, life time.Duration) *x509.Certificate {
	t.Helper()
	cert, key := server.pair(t, life)
	if err := os.WriteFile(link, append(cert, key...), 0o600); err != nil { // it follows the link
		t.Fatal(err)
	}
	return leaf(link)
}

// longLife is that of certificates that are requested in virtual time.
const longLife = 2 * time.Hour

// inVirtualTime runs a manager while test runs, from the first certificate on.
func inVirtualTime(t *testing.T, server *apiserver, create func() (*Manager, error),
	test func(t *testing.T, m *Manager, requests func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, err := create()
		if err != nil {
			t.Fatal(err)
		}
		client, requests := server.client(t)
		m.use.clientset = func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil }
		server.set(longLife, false)
		stop := start(t, m)
		time.Sleep(time.Minute)
		if requests() != 1 {
			t.Errorf("%d requests for the first certificate", requests())
		}
		test(t, m, requests)
		stop()
		time.Sleep(2 * longLife) // client-go's manager goes when its next renewal would be due
	})
}

func (n *node) client() (*Manager, error) {
	n.metrics = prometheus.NewRegistry()
	n.o.Metrics = n.metrics
	return NewClient(n.o)
}

func (n *node) server() (*Manager, error) {
	n.o.Kubelet.Kubelet.ServerTLSBootstrap, n.o.Kubelet.Kubelet.EnableServer = true, new(true)
	n.o.Metrics = prometheus.NewRegistry()
	return NewServing(n.o, func() []corev1.NodeAddress {
		return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}
	}), nil
}

// TestACertificateThatIsReplacedIsRenewed: what is on the disk is used at once.
func TestACertificateThatIsReplacedIsRenewed(t *testing.T) {
	server := newAPIServer(t)
	n := newNode(t, server)
	for name, c := range map[string]struct {
		create func() (*Manager, error)
		link   func() string
	}{
		"client":  {n.client, func() string { return clientcert.Path(n.o.Kubelet.Node.CertDir) }},
		"serving": {n.server, func() string { return n.o.Kubelet.ServingPair() }},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, server, c.create, func(t *testing.T, m *Manager, requests func() int) {
				replaced := replace(t, server, c.link(), 20*time.Minute)
				server.set(longLife, false)
				time.Sleep(2 * lookPeriod)
				if ttl := m.ttl(); ttl < 1100 || ttl > 1200 {
					t.Errorf("it ends in %v s", ttl)
				}
				if requests() != 1 {
					t.Errorf("%d requests for a certificate that is good", requests())
				}
				time.Sleep(18*time.Minute - 2*lookPeriod) // 90 % of its life
				if leaf(c.link()).Equal(replaced) || requests() != 2 {
					t.Errorf("it was not renewed, %d requests", requests())
				}
			})
		})
	}
}

// TestACertificateThatIsReplacedByOneThatHasEnded: the one before it is good, and its key is nowhere any more.
func TestACertificateThatIsReplacedByOneThatHasEnded(t *testing.T) {
	server := newAPIServer(t)
	n := newNode(t, server)
	inVirtualTime(t, server, n.client, func(t *testing.T, _ *Manager, requests func() int) {
		replaced := replace(t, server, clientcert.Path(n.o.Kubelet.Node.CertDir), -time.Minute)
		server.set(longLife, false)
		time.Sleep(10 * time.Minute)
		if n.current().Equal(replaced) || requests() != 2 {
			t.Errorf("%d requests", requests())
		}
	})
}

// TestTheEndOfACertificateThatIsReplaced is reported if it is not renewed.
func TestTheEndOfACertificateThatIsReplaced(t *testing.T) {
	server := newAPIServer(t)
	n := newNode(t, server)
	n.o.Kubelet.Kubelet.RotateCertificates = false
	inVirtualTime(t, server, n.client, func(t *testing.T, _ *Manager, requests func() int) {
		replaced := replace(t, server, clientcert.Path(n.o.Kubelet.Node.CertDir), 20*time.Minute)
		time.Sleep(19 * time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.events) != 1 || !strings.HasPrefix(n.events[0], "ClientCertificateExpires: ") {
			t.Errorf("events are %q", n.events)
		}
		ttl := n.metric(t, "kubelet_certificate_manager_client_ttl_seconds")
		if ttl < 30 || ttl > 90 || !n.current().Equal(replaced) || requests() != 1 {
			t.Errorf("it ends in %v s, %d requests", ttl, requests())
		}
	})
}

// TestOwnCertificatesReplaceNothing: a renewal does not start again.
func TestOwnCertificatesReplaceNothing(t *testing.T) {
	server := newAPIServer(t)
	n := newNode(t, server)
	var log bytes.Buffer
	n.o.Log = slog.New(slog.NewTextHandler(&log, nil))
	inVirtualTime(t, server, n.client, func(t *testing.T, _ *Manager, requests func() int) {
		time.Sleep(4 * longLife)
		// Each is renewed after 0.7 to 0.9 of its life.
		if got := requests(); got < 5 || got > 7 {
			t.Errorf("%d requests", got)
		}
	})
	if strings.Contains(log.String(), "was replaced") {
		t.Error(log.String())
	}
}

// TestStore: what the manager reads and writes is known, from the moment at which it is on the disk.
func TestStore(t *testing.T) {
	server, dir := newAPIServer(t), t.TempDir()
	files, err := certificate.NewFileStoreWithLogger(klog.Background().V(4), clientcert.PairName, dir, dir, "", "")
	if err != nil {
		t.Fatal(err)
	}
	arrived := 0
	s := &store{FileStore: files, arrived: func(*tls.Certificate) { arrived++ }}
	expect := func(when string, there, replaced bool) {
		t.Helper()
		if c, got := s.onDisk(); (c != nil) != there || got != replaced {
			t.Errorf("%s: %v, replaced %t", when, c, got)
		}
	}
	if _, err := s.Current(); err == nil {
		t.Error("there is a certificate")
	}
	expect("without one", false, false)
	if _, err := s.Update(server.pair(t, time.Hour)); err != nil || arrived != 1 {
		t.Fatalf("%d have arrived, %v", arrived, err)
	}
	expect("after its own", true, false)
	if _, err := files.Update(server.pair(t, time.Hour)); err != nil {
		t.Fatal(err)
	}
	expect("after that of another program", true, true)
	if _, err := s.Current(); err != nil {
		t.Fatal(err)
	}
	expect("once it was read", true, false)
	if err := os.Truncate(files.CurrentPath(), 10); err != nil {
		t.Fatal(err)
	}
	expect("in the middle of a write", false, false)
}
