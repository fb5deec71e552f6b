package certs

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// servingNode is a node that requests a serving certificate as soon as it has addresses.
type servingNode struct {
	*node
	manager   *Manager
	addresses atomic.Pointer[[]corev1.NodeAddress]
}

func newServingNode(t *testing.T, server *apiserver) *servingNode {
	t.Helper()
	n := &servingNode{node: newNode(t, server)}
	n.o.Kubelet.Kubelet.ServerTLSBootstrap, n.o.Kubelet.Kubelet.EnableServer = true, new(true)
	server.kubeconfig(t, n.o.Kubelet.Node.Kubeconfig, &clientcmdapi.AuthInfo{Token: bootstrapToken})
	n.addresses.Store(&[]corev1.NodeAddress{})
	n.metrics = prometheus.NewRegistry()
	n.o.Metrics = n.metrics
	m := NewServing(n.o, func() []corev1.NodeAddress { return *n.addresses.Load() })
	if m == nil {
		t.Fatal("no manager")
	}
	n.manager = m
	start(t, m)
	return n
}

func (n *servingNode) serving() *x509.Certificate { return leaf(n.o.Kubelet.ServingPair()) }

// TestServing: the certificate is requested once the node has addresses, and again when they change.
func TestServing(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(time.Hour, true)
	n := newServingNode(t, server)
	if n.manager.use.template() != nil {
		t.Fatal("a certificate for nothing is requested")
	}
	n.addresses.Store(&[]corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}, {Type: corev1.NodeHostName, Address: "n1"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
	})
	n.await(t, "a denied request", func() bool { return len(server.seen()) >= 1 })
	if n.serving() != nil {
		t.Fatal("a denied certificate is there")
	}
	server.set(time.Hour, false)
	n.await(t, "a certificate", func() bool { return n.serving() != nil })
	c := n.serving()
	want := "CN=system:node:n1,O=system:nodes [n1] [192.0.2.1 192.0.2.2]"
	if got := fmt.Sprint(c.Subject, c.DNSNames, c.IPAddresses); got != want {
		t.Errorf("it is of %s", got)
	}
	server.mu.Lock()
	for _, r := range server.requests {
		if r.Spec.SignerName != certificatesv1.KubeletServingSignerName ||
			!slices.Contains(r.Spec.Usages, certificatesv1.UsageServerAuth) ||
			slices.Contains(r.Spec.Usages, certificatesv1.UsageClientAuth) {
			t.Errorf("requested was %+v", r.Spec)
		}
	}
	server.mu.Unlock()
	if info, err := os.Stat(n.o.Kubelet.ServingPair()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the pair is %v, %v", info, err)
	}

	n.addresses.Store(&[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}})
	n.await(t, "a certificate for the new address", func() bool {
		now := n.serving() // nil between the two steps of a replacement
		return now != nil && now.VerifyHostname("192.0.2.9") == nil
	})
	if got := n.metric(t, "kubelet_server_expiration_renew_errors"); got < 1 {
		t.Errorf("%v errors after a denied request", got)
	}
	n.await(t, "the time that is left", func() bool {
		left := n.metric(t, "kubelet_certificate_manager_server_ttl_seconds")
		return left > 3500 && left <= 3600
	})
}

// TestServingIsRenewed: each renewal is counted with the age of the certificate before it.
func TestServingIsRenewed(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(15*time.Second, false) // it is renewed at least 1.5 s before its end
	n := newServingNode(t, server)
	n.addresses.Store(&[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}})
	n.await(t, "a certificate", func() bool { return n.serving() != nil })
	first := n.serving()
	n.await(t, "a renewal", func() bool { return !n.serving().Equal(first) })
	n.await(t, "its figure", func() bool {
		families, err := n.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(families, func(f *dto.MetricFamily) bool {
			return f.GetName() == "kubelet_certificate_manager_server_rotation_seconds" &&
				f.Metric[0].GetHistogram().GetSampleCount() > 0
		})
	})
}

// TestNamesAlone are requested if the feature gate says so.
func TestNamesAlone(t *testing.T) {
	t.Parallel()
	for _, enabled := range []bool{false, true} {
		n := newNode(t, newAPIServer(t))
		k := n.o.Kubelet
		k.Kubelet.ServerTLSBootstrap, k.Kubelet.EnableServer = true, new(true)
		k.Kubelet.FeatureGates = map[string]bool{gateDNSOnly: enabled}
		m := NewServing(n.o, func() []corev1.NodeAddress {
			return []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}}
		})
		if got := m.use.template(); (got != nil) != enabled || got != nil && fmt.Sprint(got.DNSNames) != "[n1]" {
			t.Errorf("%s=%v: the template is %v", gateDNSOnly, enabled, got)
		}
	}
}

// TestTheConfiguredServingCertificate serves until one for all addresses is there, as with the kubelet.
func TestTheConfiguredServingCertificate(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(time.Hour, false)
	n := newServingNode(t, server)
	n.addresses.Store(&[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}})
	n.await(t, "a certificate", func() bool { return n.serving() != nil })

	given := filepath.Join(t.TempDir(), "given.pem")
	pair, err := os.ReadFile(n.o.Kubelet.ServingPair())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(given, pair, 0o600); err != nil {
		t.Fatal(err)
	}
	other := newNode(t, server)
	k := other.o.Kubelet
	k.Kubelet.ServerTLSBootstrap, k.Kubelet.EnableServer = true, new(true)
	k.Kubelet.TLSCertFile, k.Kubelet.TLSPrivateKeyFile = given, given
	server.kubeconfig(t, k.Node.Kubeconfig, &clientcmdapi.AuthInfo{Token: bootstrapToken})
	before := len(server.seen())
	start(t, NewServing(other.o, func() []corev1.NodeAddress { return *n.addresses.Load() }))
	other.await(t, "the configured one", func() bool {
		return other.metric(t, "kubelet_certificate_manager_server_ttl_seconds") < 3601
	})
	if more := len(server.seen()) - before; more != 0 {
		t.Errorf("%d certificates were requested beside a good one", more)
	}
}

func TestNoServingCertificateIsRequested(t *testing.T) {
	t.Parallel()
	n := newNode(t, newAPIServer(t))
	for _, c := range []struct {
		name               string
		bootstrap, enabled bool
		kubeconfig         string
	}{
		{"the field is off", false, true, n.o.Kubelet.Node.Kubeconfig},
		{"no port", true, false, n.o.Kubelet.Node.Kubeconfig},
		{"standalone", true, true, ""},
	} {
		k := *n.o.Kubelet
		k.Kubelet.ServerTLSBootstrap, k.Kubelet.EnableServer, k.Node.Kubeconfig = c.bootstrap, &c.enabled, c.kubeconfig
		o := n.o
		if o.Kubelet = &k; NewServing(o, nil) != nil {
			t.Errorf("%s: there is a manager", c.name)
		}
	}
}

func TestSubjectAlternatives(t *testing.T) {
	t.Parallel()
	names, ips := subjectAlternatives([]corev1.NodeAddress{
		{Type: corev1.NodeExternalDNS, Address: "b"}, {Type: corev1.NodeInternalDNS, Address: "a"},
		{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeHostName, Address: "192.0.2.7"},
		{Type: corev1.NodeHostName},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.7"},
		{Type: corev1.NodeInternalIP, Address: "no address"},
	})
	if got := fmt.Sprint(names, ips); got != "[a b] [192.0.2.7 2001:db8::1]" {
		t.Error(strings.TrimSpace(got))
	}
}
